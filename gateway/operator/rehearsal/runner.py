"""Runs the chapters of a rehearsal, saves its progress, and removes what it has created."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from gateway.operator.rehearsal.checks import record_assumptions
from gateway.operator.rehearsal.report import CAPABILITY_NAME, Report, build_report
from gateway.operator.rehearsal.run import (
    ENVIRONMENT,
    REFERENCE_PREFIX,
    RehearsalRun,
    RehearsalStopped,
)
from gateway.operator.rehearsal.scenario import CHAPTERS
from gateway.storage import ObjectStateStore
from mappings.payloads import extract_batch, find_payments

FORMAT = 2
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
RECALLED = " (in an earlier run, whose batches are still there)"


class Leftover(NamedTuple):
    """An object at the service, and why it could not be removed."""

    kind: str
    id: str
    reference: str
    reason: str = ""


async def run_rehearsal(
    run: RehearsalRun, objects: ObjectStateStore, report_chapter: Callable[[int, str], None]
) -> Report:
    """Runs all chapters, or those that an interrupted run has not finished, and cleans up.

    Raises RehearsalStopped if the service refuses a first read, and StoreUnavailable.
    """
    first = await run.call_service("GET", "/v1/recipients?page=1&pageSize=1")
    if not first.is_accepted:
        raise RehearsalStopped(f"the sandbox refuses a first read with {first}; run `doctor`")
    learned = await objects.load_capabilities(ENVIRONMENT)
    last: dict[str, Any] = learned[CAPABILITY_NAME][0] if CAPABILITY_NAME in learned else {}
    last = last if last.get("format") == FORMAT else {}
    base_url = run.settings.environments.map_configured_environments_by_name()[ENVIRONMENT].base_url
    scope, done = [base_url, run.may_start], list[str]()
    if last.get("scope") == scope and time.time() - last["at"] < RESUME_SECONDS:
        done, run.results = last["chapters"], last["results"]
    left = await _remove_objects(run, (Leftover(**item) for item in last.get("left", ())))
    recalled = _reuse_batches(run, left, last.get("results", {}))

    async def save(verdict: str, *, is_ok: bool = False, is_over: bool = False) -> None:
        row = {"format": FORMAT, "at": int(time.time()), "verdict": verdict, "is_ok": is_ok}
        row |= {"left": [item._asdict() for item in left], "results": run.results}
        row |= {} if is_over else {"scope": scope, "chapters": done}
        await objects.save_capability(ENVIRONMENT, CAPABILITY_NAME, row)

    stop_reason, earlier_left = "", left
    for number, (name, steps) in enumerate(CHAPTERS.items()):
        if stop_reason or name in done or (name == "start" and not run.may_start):
            continue
        report_chapter(number, name)
        try:
            for step in steps:
                await _finish_if_interrupted(run.take_step(step))
            done.append(name)
        except RehearsalStopped as reason:
            stop_reason = str(reason)
        record_assumptions(run)
        left = [*earlier_left, *_list_created_objects(run)]
        # Saved now: a run that is killed is continued and cleaned up by the next one.
        await save("interrupted")
    report_chapter(len(CHAPTERS), "cleaning up")
    left = await _remove_objects(run, [*await _find_listed_objects(run), *left])
    run.results = recalled | run.results
    report = build_report(run, [item._asdict() for item in left], stop_reason)
    await save(report["verdict"], is_ok=report["exit_code"] == 0, is_over=not stop_reason)
    return report


def _reuse_batches(run: RehearsalRun, left: list[Leftover], results: Any) -> dict[str, Any]:
    """Takes over batches that the service does not delete, so that no run leaves more.

    Returns what the earlier run has seen, for what this run does not create again.
    """
    reused = {item.reference: item.id for item in left if item.reason == REUSABLE}
    for reference, id_ in reused.items():
        run.save_ids(reference[len(run.values["reference"]) + 1 :], id_, id_)
    # An added payment cannot be removed either.
    if "read" in run.values and "create_payment" in results:
        run.save_ids("added", "", "")
    rows = results.items() if reused else ()
    return {name: (holds, seen.removesuffix(RECALLED) + RECALLED) for name, (holds, seen) in rows}


async def _finish_if_interrupted(request: Coroutine[Any, Any, None]) -> None:
    """Finishes a request before a cancellation: what it creates has to be removed."""
    task = asyncio.ensure_future(request)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        if current := asyncio.current_task():
            current.uncancel()
        reason = "interrupted; run the same command again to continue"
        raise RehearsalStopped(reason) from None


def _list_created_objects(run: RehearsalRun) -> list[Leftover]:
    """Lists what the calls have created and not deleted."""
    created: dict[str, Leftover] = {}
    for call in filter(lambda call: call.is_accepted, run.client.exchanges):
        if call.method == "DELETE":
            for id_ in call.sent.get("ids", [call.path.rpartition("/")[2]]):
                created.pop(id_, None)
        elif call.method == "POST" and (kind := call.path.removeprefix("/v1/")) in SEARCHES:
            shown = call.body.get("recipient") or extract_batch(call.body)
            id_, reference = str(shown.get("id") or ""), call.sent.get(SEARCHES[kind][0])
            created[id_] = Leftover(kind, id_, str(reference))
    # Without an id, only the search finds an object.
    return [item for item in created.values() if item.id]


async def _find_listed_objects(run: RehearsalRun) -> list[Leftover]:
    """Finds objects of any rehearsal by their reference, also if their creation was not answered."""
    found = []
    for kind, (field, target) in SEARCHES.items():
        try:
            answer = await run.call_service("GET", target)
        except RehearsalStopped:
            continue
        for row in answer.body.get(kind) or ():
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
        return "it was started, so it stays"
    payments = find_payments(answer.body)
    return REUSABLE if payments is None or len(payments) > 1 else OPEN
