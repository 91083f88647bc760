"""Runs the chapters of a rehearsal, and removes what this and earlier runs have created."""

import itertools
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.operator import PROBE_TARGET, REFERENCE_PREFIX
from gateway.operator.rehearsal.checks import record_checks
from gateway.operator.rehearsal.report import Report, build_report
from gateway.operator.rehearsal.run import (
    MISSING_PATH_STATUSES,
    RehearsalRun,
    RehearsalStopped,
    find_value,
    normalize,
)
from gateway.operator.rehearsal.scenario import CHAPTERS, LISTS, START, STEPS

KINDS = {
    "batches": ("batch", "description", "", "edits"),
    "recipients": ("recipient", "referenceId", f"&search={REFERENCE_PREFIX}", "delete_recipient"),
}
"""By kind: the name of one, its field with the reference, how to list it, the row of deletions."""

STARTED_STATUSES = ("processing", "processed", "complete")

Leftover = dict[str, Any]
"""An object at the service (``kind``, ``id``, ``reference``), and the ``reason`` why it is there."""


async def run_rehearsal(run: RehearsalRun) -> Report:
    """Runs all chapters, and cleans up, also after earlier runs.

    Raises RehearsalStopped if the service does not accept the first read.
    """
    first = await run.call_service("GET", PROBE_TARGET)
    if not first.is_accepted:
        raise RehearsalStopped(f"the sandbox did not accept the first read: {first}")
    stop_reason = ""
    try:
        for chapter in filter(partial(_is_possible, run), CHAPTERS):
            run.client.show_progress(f"rehearsing {chapter}")
            for step in (step for step in STEPS if step.chapter == chapter):
                await run.take_step(step)
            record_checks(run)
    except RehearsalStopped as reason:
        stop_reason = str(reason)
    run.client.show_progress("cleaning up")
    objects = _list_created_objects(run)
    with suppress(RehearsalStopped):
        objects += await _find_listed_objects(run)
    return build_report(run, await _remove_objects(run, objects), stop_reason)


def _is_possible(run: RehearsalRun, chapter: str) -> bool:
    if chapter == START:
        return run.may_start
    # The lists cannot be tested with recipients that they do not show.
    return chapter != LISTS or run.results.get("listed at once", (None,))[0] is not False


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
        try:
            reason = await _remove_object(run, item["kind"], item["id"])
        except RehearsalStopped as stopped:
            reason = str(stopped)
        left += [{**item, "reason": reason}] if reason else []
    return left


async def _remove_object(run: RehearsalRun, kind: str, id_: str) -> str:
    """Deletes an object; returns why it is still there, empty if it is not."""
    deletion = await run.call_service("DELETE", f"/v1/{kind}/{id_}")
    paths = {"batches": run.settings.vocabulary.current.summary_path.format(id=id_)}
    read = await run.call_service("GET", paths.get(kind, f"/v1/{kind}/{id_}"))
    one, *_, row = KINDS[kind]
    status = find_value(normalize(read.body), f"{one}.status")
    is_refused = deletion.is_accepted or (read.reply.status == 404 and read.body)
    if status == "archived" or (is_refused and not read.is_accepted):
        return ""
    if status in STARTED_STATUSES:
        return "it was started, so it stays"
    if deletion.is_accepted:
        reason = "the service confirms its deletion, but still has it"
        run.record(row, is_ok=False, seen="a DELETE is confirmed and ignored")
    elif deletion.reply.status in MISSING_PATH_STATUSES:
        reason = "the service does not delete it by this path"
    else:
        reason = f"it was not deleted: {deletion}"
    if status in ("open", "pending"):
        return f"{reason}; it is open and pays nobody"
    return reason if read.is_accepted else f"{reason}; it cannot be read: {read}"
