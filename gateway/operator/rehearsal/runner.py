"""Runs the chapters of a rehearsal, saves its progress, and removes what it has created."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import Any

from gateway.operator.rehearsal.checks import record_checks
from gateway.operator.rehearsal.report import CAPABILITY_NAME, Report, build_report
from gateway.operator.rehearsal.run import (
    ENVIRONMENT,
    FIRST_READ,
    MISSING_PATH_STATUSES,
    REFERENCE_PREFIX,
    RehearsalRun,
    RehearsalStopped,
    find_value,
    normalize,
)
from gateway.operator.rehearsal.scenario import CHAPTERS, LISTS, START, STEPS
from gateway.storage import ObjectStateStore

FORMAT, RESUME_SECONDS = 5, 3600
"""Of the saved progress, and how long after an interruption the finished chapters count."""
KINDS = {
    "batches": ("batch", "description", "", "edits"),
    "recipients": ("recipient", "referenceId", f"&search={REFERENCE_PREFIX}", "delete_recipient"),
}
"""By kind: the name of one, its field with the reference, how to list it, the row of deletions."""

STARTED_STATUSES = ("processing", "processed", "complete")

Leftover = dict[str, Any]
"""An object at the service (``kind``, ``id``, ``reference``), the ``reason`` why it is there, and
whether the next run can use it again (``is_reusable``)."""


async def run_rehearsal(run: RehearsalRun, objects: ObjectStateStore) -> Report:
    """Runs all chapters, or those that an interrupted run has not finished, and cleans up.

    Raises RehearsalStopped if the service refuses a first read, and StoreUnavailable.
    """
    first = await run.call_service("GET", FIRST_READ)
    if not first.is_accepted:
        raise RehearsalStopped(f"the sandbox refuses a first read with {first}")
    base_url = run.settings.environments.map_configured_environments_by_name()[ENVIRONMENT].base_url
    name = f"{CAPABILITY_NAME} {FORMAT} {run.tenant.merchant} {base_url}"
    learned = await objects.load_capabilities(ENVIRONMENT)
    saved: dict[str, Any] = learned[name][0] if name in learned else {}
    is_recent = time.time() - saved.get("at", 0) < RESUME_SECONDS
    done: list[str] = saved["chapters"] if is_recent else []
    run.failed_requests = saved["failed_requests"] if is_recent else []
    # A run does not see all that earlier ones saw, because it starts or creates no other batch.
    earlier, run.results = saved.get("earlier", {}), saved.get("results", {})
    if not done:
        earlier, run.results = earlier | run.results, {}
    left = await _remove_objects(run, saved.get("left", []))
    # What it shows is not of this run.
    run.client.exchanges.clear()
    _take_over_batches(run, left, has_added_payment="create_payment" in earlier)

    async def save(verdict: str = "interrupted", *, is_ok: bool = False) -> None:
        row = {"at": int(time.time()), "chapters": done, "failed_requests": run.failed_requests}
        row |= {"results": run.results, "earlier": earlier}
        row["left"] = [*left, *_list_created_objects(run)]
        await objects.save_capability(ENVIRONMENT, name, row)
        row = {"at": int(time.time()), "verdict": verdict, "is_ok": is_ok}
        await objects.save_capability(ENVIRONMENT, CAPABILITY_NAME, row)

    stop_reason = ""
    try:
        for chapter in CHAPTERS:
            if chapter in done or not _is_possible(run, chapter):
                continue
            run.client.show_progress(f"rehearsing {chapter}")
            for step in (step for step in STEPS if step.chapter == chapter):
                # Before each request: a run that is killed is continued and cleaned up by the next
                # one, which looks at what was created, and so at a batch that was perhaps started.
                await save()
                await run.take_step(step)
            record_checks(run)
            done.append(chapter)
    except RehearsalStopped as reason:
        stop_reason = str(reason)
    run.client.show_progress("cleaning up")
    await save()
    left += _list_created_objects(run)
    with suppress(RehearsalStopped):
        left += await _find_listed_objects(run)
    left = await _remove_objects(run, left)
    run.client.exchanges.clear()
    report = build_report(run, earlier, left, stop_reason)
    if not stop_reason:
        done, run.failed_requests = [], []
    await save(report["verdict"], is_ok=report["exit_code"] == 0)
    return report


def _is_possible(run: RehearsalRun, chapter: str) -> bool:
    if chapter == START:
        return run.may_start or "started" in run.values
    # The lists cannot be tested with recipients that they do not show.
    return chapter != LISTS or run.results.get("listed at once", (None,))[0] is not False


def _take_over_batches(run: RehearsalRun, left: list[Leftover], *, has_added_payment: bool) -> None:
    """Takes over batches that the service does not delete, so that no run leaves more."""
    for item in left:
        name = item["reference"][len(run.values["reference"]) + 1 :]
        if item["is_reusable"] or name == START:
            run.save_id(name, item["id"], item["id"])
        # No other one is started, also if the answer to its start was lost.
        if name == START and not item["is_reusable"]:
            run.save_id("started", item["id"], item["id"])
    if "read" in run.values and has_added_payment:  # which cannot be removed either
        run.save_id("added", "", "")


def _list_created_objects(run: RehearsalRun) -> list[Leftover]:
    """Lists what the calls have created, also if it is deleted by now."""
    created = []
    for kind, (one, field, *_) in KINDS.items():
        for call in run.client.exchanges:
            if (call.method, call.path) == ("POST", f"/v1/{kind}") and call.is_accepted:
                id_, reference = find_value(normalize(call.body), f"{one}.id"), call.sent.get(field)
                created.append({"kind": kind, "id": str(id_), "reference": str(reference)})
    # Without an id only the search finds it.
    return [item for item in created if item["id"] != "None"]


async def _find_listed_objects(run: RehearsalRun) -> list[Leftover]:
    """Finds objects of any rehearsal by their reference, also if their creation was not answered."""
    found, ids = list[Leftover](), {"None"}
    for kind, (_one, field, search, _row) in KINDS.items():
        # Up to a page without new rows, because not every service counts them.
        for page in itertools.count(1):
            target = f"/v1/{kind}?pageSize=100&page={page}{search}"
            rows = (await run.call_service("GET", target)).body.get(kind)
            rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            new = {str(row.get("id")): row for row in rows if str(row.get("id")) not in ids}
            if not new:
                break
            ids |= new.keys()
            found += [
                {"kind": kind, "id": id_, "reference": row[field]}
                for id_, row in new.items()
                if str(row.get(field)).startswith(REFERENCE_PREFIX)
                and row.get("status") not in (*STARTED_STATUSES, "archived")
            ]
    return found


async def _remove_objects(run: RehearsalRun, objects: list[Leftover]) -> list[Leftover]:
    """Deletes objects, and returns what is left."""
    left: list[Leftover] = []
    # Batches first: a service may refuse to delete the recipient of a payment.
    items = {item["id"]: item for item in objects}.values()
    for item in sorted(items, key=lambda item: (item["kind"], item["id"])):
        is_payee = item["reference"].endswith(("-payee", "-payee-DE"))
        # The next run edits their payments, and a service refuses that for an archived payee.
        if is_payee and any(batch["is_reusable"] for batch in left):
            left.append({**item, "reason": "the next run uses it again", "is_reusable": True})
            continue
        try:
            reason, is_open = await _remove_object(run, item["kind"], item["id"])
        except RehearsalStopped as stopped:
            reason, is_open = str(stopped), False
        left += [{**item, "reason": reason, "is_reusable": is_open}] if reason else []
    return left


async def _remove_object(run: RehearsalRun, kind: str, id_: str) -> tuple[str, bool]:
    """Deletes an object; returns why it is still there, empty if it is not, and if it is open."""
    deletion = await run.call_service("DELETE", f"/v1/{kind}/{id_}")
    paths = {"batches": run.settings.vocabulary.current.summary_path.format(id=id_)}
    read = await run.call_service("GET", paths.get(kind, f"/v1/{kind}/{id_}"))
    one, *_, row = KINDS[kind]
    status = find_value(normalize(read.body), f"{one}.status")
    is_refused = deletion.is_accepted or (read.reply.status == 404 and read.body)
    if status == "archived" or (is_refused and not read.is_accepted):
        return "", False
    if status in STARTED_STATUSES:
        return "it was started, so it stays", False
    if deletion.is_accepted:
        reason = "the service confirms its deletion, but still has it"
        run.record(row, is_ok=False, seen="a DELETE is confirmed and ignored")
    elif deletion.reply.status in MISSING_PATH_STATUSES:
        reason = "the service does not delete it by this path"
    else:
        reason = f"it was not deleted: {deletion}"
    if status in ("open", "pending"):
        return f"{reason}; it is open and pays nobody; the next run uses it again", True
    return reason if read.is_accepted else f"{reason}; it cannot be read: {read}", False
