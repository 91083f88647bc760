"""Runs the chapters of a rehearsal, saves its progress, and removes what it has created."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gateway.operator.rehearsal.checks import record_checks
from gateway.operator.rehearsal.report import CAPABILITY_NAME, Report, build_report
from gateway.operator.rehearsal.run import (
    ENVIRONMENT,
    REFERENCE_PREFIX,
    RehearsalRun,
    RehearsalStopped,
    Seen,
)
from gateway.operator.rehearsal.scenario import CHAPTERS, LISTS, START
from gateway.storage import ObjectStateStore
from mappings.payloads import extract_batch, find_payments

FORMAT = 3
"""Of the saved row. The progress of another one is ignored."""
RESUME_SECONDS = 3600
"""How long after an interruption the finished chapters still count."""
SEARCHES = {
    "batches": ("description", "/v1/batches?pageSize=100"),
    "recipients": ("referenceId", f"/v1/recipients?pageSize=100&search={REFERENCE_PREFIX}"),
}
"""By kind: the field with the reference, and the list that shows the latest objects."""

STAYS = "the service does not delete it by this path"
OPEN = f"{STAYS}; it is open and pays nobody"
REUSABLE = f"{OPEN}; the next run uses it again"
STARTED = "it was started, so it stays"
EARLIER = " (in an earlier run)"


class Leftover(NamedTuple):
    """An object at the service, and why it could not be removed."""

    kind: str
    id: str
    reference: str
    reason: str = ""


async def run_rehearsal(
    run: RehearsalRun, objects: ObjectStateStore, show_progress: Callable[[str], None]
) -> Report:
    """Runs all chapters, or those that an interrupted run has not finished, and cleans up.

    Raises RehearsalStopped if the service refuses a first read, and StoreUnavailable.
    """
    first = await run.call_service("GET", "/v1/recipients?page=1&pageSize=1")
    if not first.is_accepted:
        raise RehearsalStopped(f"the sandbox refuses a first read with {first}; run `doctor`")
    base_url = run.settings.environments.map_configured_environments_by_name()[ENVIRONMENT].base_url
    learned = await objects.load_capabilities(ENVIRONMENT)
    saved: dict[str, Any] = learned[CAPABILITY_NAME][0] if CAPABILITY_NAME in learned else {}
    saved = saved if (saved.get("format"), saved.get("base_url")) == (FORMAT, base_url) else {}
    is_recent = time.time() - saved.get("at", 0) < RESUME_SECONDS
    done: list[str] = saved.get("chapters", []) if is_recent else []
    results: dict[str, Any] = saved.get("results", {})
    earlier = _mark_as_earlier(results)
    if done:
        run.results = {name: r for name, r in results.items() if not r[1].endswith(EARLIER)}
    left = await _remove_objects(run, (Leftover(**item) for item in saved.get("left", ())))
    # What it shows is not of this run.
    run.client.exchanges.clear()
    _reuse_batches(run, left, has_added_payment="create_payment" in results)
    # Each start leaves a batch that cannot be deleted, so one that has worked is not repeated.
    has_worked = earlier.get("start_batch", (None, ""))[0]
    may_start = run.may_start and not (has_worked and STARTED in [item.reason for item in left])

    async def save(verdict: str, *, is_ok: bool = False, is_over: bool = False) -> None:
        row = {"format": FORMAT, "base_url": base_url, "at": int(time.time())}
        row |= {"verdict": verdict, "is_ok": is_ok, "chapters": [] if is_over else done}
        row |= {"left": [item._asdict() for item in left], "results": earlier | run.results}
        await objects.save_capability(ENVIRONMENT, CAPABILITY_NAME, row)

    stop_reason, earlier_left = "", left
    for name in CHAPTERS:
        if stop_reason or name in done or (name == START and not may_start):
            continue
        # The lists cannot be tested with recipients that they do not show.
        if name == LISTS and run.results.get("listed at once", (None,))[0] is False:
            continue
        show_progress(f"rehearsing {name}")
        before = dict(run.results)
        try:
            await run.take_chapter(name)
            record_checks(run)
            done.append(name)
        except RehearsalStopped as reason:
            # The chapter will be repeated. If the service is silent, its rows fail without a reason.
            stop_reason, run.results = str(reason), before
        left = [*earlier_left, *_list_created_objects(run)]
        # Saved now: a run that is killed is continued and cleaned up by the next one.
        await save("interrupted")
    show_progress("cleaning up")
    left = await _remove_objects(run, [*await _find_listed_objects(run), *left])
    run.results = earlier | run.results
    report = build_report(run, [item._asdict() for item in left], stop_reason)
    await save(report["verdict"], is_ok=report["exit_code"] == 0, is_over=not stop_reason)
    return report


def _mark_as_earlier(results: Mapping[str, Seen]) -> dict[str, Seen]:
    """Returns results for what a run does not see, because it starts or creates no other batch."""
    return {
        name: (is_ok, seen.removesuffix(EARLIER) + EARLIER)
        for name, (is_ok, seen) in results.items()
        if is_ok is not None
    }


def _reuse_batches(run: RehearsalRun, left: list[Leftover], *, has_added_payment: bool) -> None:
    """Takes over batches that the service does not delete, so that no run leaves more."""
    for item in left:
        if item.reason == REUSABLE:
            run.save_id(item.reference[len(run.values["reference"]) + 1 :], item.id, item.id)
    if "read" in run.values and has_added_payment:  # which cannot be removed either
        run.save_id("added", "", "")


def _list_created_objects(run: RehearsalRun) -> list[Leftover]:
    """Lists what the calls have created, also if it is deleted by now."""
    created = []
    for call in run.client.exchanges:
        kind = call.path.removeprefix("/v1/")
        if call.method == "POST" and call.is_accepted and kind in SEARCHES:
            shown = call.body.get("recipient") or extract_batch(call.body)
            reference = str(call.sent.get(SEARCHES[kind][0]))
            if shown.get("id"):  # otherwise only the search finds it
                created.append(Leftover(kind, str(shown["id"]), reference))
    return created


async def _find_listed_objects(run: RehearsalRun) -> list[Leftover]:
    """Finds objects of any rehearsal by their reference, also if their creation was not answered."""
    found = []
    for kind, (field, target) in SEARCHES.items():
        with suppress(RehearsalStopped):
            for row in (await run.call_service("GET", target)).body.get(kind) or ():
                is_own = str(row.get(field) or "").startswith(REFERENCE_PREFIX)
                is_final = row.get("status") in ("archived", "processing", "processed", "complete")
                found += [Leftover(kind, row["id"], row[field])] if is_own and not is_final else []
    return found


async def _remove_objects(run: RehearsalRun, objects: Iterable[Leftover]) -> list[Leftover]:
    """Deletes objects, and returns what is left."""
    left = []
    # Batches first: a service may refuse to delete the recipient of a payment.
    for item in sorted({item.id: item for item in objects}.values()):
        try:
            reason = await _remove_object(run, item.kind, item.id)
        except RehearsalStopped as stopped:
            reason = str(stopped)
        left += [item._replace(reason=reason)] if reason else []
    return left


async def _remove_object(run: RehearsalRun, kind: str, id_: str) -> str:
    """Deletes an object; returns why it is still there, empty if it is not."""
    path = f"/v1/{kind}/{id_}"
    if (await run.call_service("DELETE", path)).is_accepted:
        return ""
    if is_batch := kind == "batches":
        path = run.settings.vocabulary.current.summary_path.format(id=id_)
    answer = await run.call_service("GET", path)
    shown = extract_batch(answer.body) if is_batch else answer.body.get("recipient") or {}
    if answer.reply.status == 404 or shown.get("status") == "archived":
        return ""
    if not is_batch:
        return STAYS
    if shown.get("status") not in ("open", "pending"):
        return STARTED
    payments = find_payments(answer.body)
    return REUSABLE if payments is None or len(payments) > 1 else OPEN
