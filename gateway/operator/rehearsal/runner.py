"""Runs the chapters of a rehearsal, saves its progress, and removes what it has created."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gateway.operator.rehearsal.checks import record_assumptions
from gateway.operator.rehearsal.report import CAPABILITY_NAME, Report, build_report
from gateway.operator.rehearsal.run import (
    ENVIRONMENT,
    REFERENCE_PREFIX,
    RehearsalRun,
    RehearsalStopped,
    Results,
)
from gateway.operator.rehearsal.scenario import CHAPTERS, Step
from gateway.storage import ObjectStateStore
from mappings.payloads import extract_batch, find_payments

RESUME_SECONDS = 3600
"""How long after an interruption the finished chapters still count."""

SEARCHES = {
    "batches": ("description", "/v1/batches?pageSize=100"),
    "recipients": ("referenceId", f"/v1/recipients?pageSize=100&search={REFERENCE_PREFIX}"),
}
"""By kind: the field with the reference, and the list that shows the latest objects."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object at the service, and why it could not be removed.

    ``is_reusable``: an open batch with its payments, which the next run uses again.
    """

    kind: str
    id: str
    reference: str
    reason: str = ""
    is_reusable: bool = False


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
    scope, done = [run.base_url, run.may_start], list[str]()
    if last.get("scope") == scope and time.time() - last["at"] < RESUME_SECONDS:
        done, run.results = last["chapters"], Results(**last["results"])
    left = await _remove_objects(run, (Leftover(**item) for item in last.get("left", ())))
    run.reuse_batches(
        {item.reference: item.id for item in left if item.is_reusable},
        Results(**last.get("results", {})),
    )

    async def save(verdict: str, *, is_ok: bool = False, is_over: bool = False) -> None:
        row = {"at": int(time.time()), "verdict": verdict, "is_ok": is_ok}
        row |= {"left": [asdict(item) for item in left], "results": asdict(run.results)}
        row |= {} if is_over else {"scope": scope, "chapters": done}
        await objects.save_capability(ENVIRONMENT, CAPABILITY_NAME, row)

    stop_reason, earlier_left = "", left
    for number, (name, steps) in enumerate(CHAPTERS.items()):
        if stop_reason or name in done or (name == "start" and not run.may_start):
            continue
        report_chapter(number, name)
        try:
            await _take_steps(run, steps)
            done.append(name)
        except RehearsalStopped as reason:
            stop_reason = str(reason)
        record_assumptions(run)
        left = [*earlier_left, *_list_created_objects(run)]
        # Saved now: a run that is killed is continued and cleaned up by the next one.
        await save("interrupted")
    report_chapter(len(CHAPTERS), "cleaning up")
    left = await _remove_objects(run, [*await _find_listed_objects(run), *left])
    report = build_report(run, [asdict(item) for item in left], stop_reason)
    await save(report["verdict"], is_ok=report["exit_code"] == 0, is_over=not stop_reason)
    return report


async def _take_steps(run: RehearsalRun, steps: Iterable[Step]) -> None:
    """Takes the steps of a chapter. After a cancellation the request in flight is finished first:
    what it creates has to be removed.
    """

    async def take_all() -> None:
        for step in steps:
            await run.take_step(step)

    chapter = asyncio.ensure_future(take_all())
    try:
        await asyncio.shield(chapter)
    except asyncio.CancelledError:
        run.is_interrupted = True
        if task := asyncio.current_task():
            task.uncancel()
        await chapter


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
    """Finds objects of any rehearsal by their reference, also those whose creation was not answered."""
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
    by_id = {item.id: item for item in objects}
    left = []
    # Batches first: a service may refuse to delete the recipient of a payment.
    for item in sorted(by_id.values(), key=lambda item: (item.kind, item.id)):
        try:
            left += [remaining] if (remaining := await _remove_object(run, item)) else []
        except RehearsalStopped as reason:
            left.append(replace(item, reason=str(reason)))
    return left


async def _remove_object(run: RehearsalRun, item: Leftover) -> Leftover | None:
    """Returns the object if it is still there."""
    path = f"/v1/{item.kind}/{item.id}"
    if (await run.call_service("DELETE", path)).is_accepted:
        return None
    if is_batch := item.kind == "batches":
        path = run.settings.vocabulary.current.summary_path.format(id=item.id)
    answer = await run.call_service("GET", path)
    shown = extract_batch(answer.body) if is_batch else answer.body.get("recipient") or {}
    if answer.reply.status == 404 or shown.get("status") == "archived":
        return None
    reason = "the service does not delete it by this path"
    if not is_batch:
        return replace(item, reason=reason)
    if shown.get("status") not in ("open", "pending"):
        return replace(item, reason="it was started, so it stays", is_reusable=False)
    reason += "; it is open and pays nobody; the next run uses it again"
    payments = find_payments(answer.body)
    return replace(item, reason=reason, is_reusable=payments is None or len(payments) > 1)
