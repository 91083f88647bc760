"""Runs the chapters of a rehearsal, saves its progress, and cleans up after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gateway.operator.rehearsal.cleanup import Leftover, list_created_objects, remove_objects
from gateway.operator.rehearsal.report import CAPABILITY_NAME, Report, build_report
from gateway.operator.rehearsal.run import Interrupted, RehearsalRun, Results, StepFailed
from gateway.operator.rehearsal.sandbox import ENVIRONMENT, Sandbox, ServiceSilent
from gateway.operator.rehearsal.scenario import CHAPTERS
from gateway.storage import ObjectStateStore

RESUME_SECONDS = 3600
"""How long after an interruption the finished chapters still count."""


async def run_rehearsal(
    run: RehearsalRun,
    objects: ObjectStateStore,
    *,
    count_interruptions: Callable[[], int],
    report_chapter: Callable[[int, str], None],
) -> Report:
    """Runs all chapters, or those that an interrupted run has not finished, and cleans up.

    The first interruption ends the chapters, the second one the cleaning. Raises ServiceSilent if
    the service does not answer, and StoreUnavailable.
    """
    sandbox = run.sandbox
    await _require_answering_service(sandbox)
    learned = await objects.load_capabilities(ENVIRONMENT)
    previous: dict[str, Any] = learned[CAPABILITY_NAME][0] if CAPABILITY_NAME in learned else {}
    scope = [sandbox.base_url, run.may_start]
    is_resumed = previous.get("scope") == scope and time.time() - previous["at"] < RESUME_SECONDS
    done: list[str] = previous["chapters"] if is_resumed else []
    run.results = Results(**previous["results"]) if is_resumed else Results()
    left = [Leftover(**item) for item in previous.get("left", ())]

    async def save(verdict: str, *, is_ok: bool = False, **progress: Any) -> None:
        left_rows = [asdict(item) for item in left]
        row = {"at": int(time.time()), "verdict": verdict, "is_ok": is_ok, "left": left_rows}
        await objects.save_capability(ENVIRONMENT, CAPABILITY_NAME, row | progress)

    earlier_left, stop_reason = left, ""
    for number, (name, rehearse_chapter) in enumerate(CHAPTERS):
        if name in done or stop_reason:
            continue
        report_chapter(number, name)
        try:
            await rehearse_chapter(run)
        except (Interrupted, ServiceSilent) as reason:
            stop_reason = str(reason)
        # The operation's row says what failed; the rest of the chapter is not tried.
        except StepFailed:
            pass
        run.observe_paths()
        done += [] if stop_reason else [name]
        left = [*earlier_left, *list_created_objects(sandbox.exchanges)]
        # Saved now: a run that is killed is continued and cleaned up by the next one.
        await save("interrupted", scope=scope, chapters=done, results=asdict(run.results))
    report_chapter(len(CHAPTERS), "cleaning up")
    left = await remove_objects(sandbox, left, lambda: count_interruptions() > 1)
    report = build_report(run.results, left, stop_reason)
    if stop_reason:
        await save(report["verdict"], scope=scope, chapters=done, results=asdict(run.results))
    else:
        await save(report["verdict"], is_ok=report["exit_code"] == 0)
    return report


async def _require_answering_service(sandbox: Sandbox) -> None:
    """Raises ServiceSilent unless the service accepts a read with the key's credentials."""
    answer = await sandbox.call_service("GET", "/v1/recipients?page=1&pageSize=1")
    if not answer.is_accepted:
        raise ServiceSilent(f"the sandbox refuses a first read with {answer}; run `doctor`")
