"""Runs a comparison: sends each step to both sides and compares the answers in order.

The two requests of a step are sent in parallel. Steps overlap unless one must wait for another
(``steps.list_prerequisites``). Answers are compared in order of the steps, which makes runs repeatable.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gateway.compare.answer import Answer
from gateway.compare.differences import Differ
from gateway.compare.endpoints import NoAnswer, Sent, Side
from gateway.compare.errors import Unusable
from gateway.compare.findings import Findings, NotCompared
from gateway.compare.id_map import Pairing
from gateway.compare.operations import ID, IN_TEXT
from gateway.compare.scenario import OWN, RUN
from gateway.compare.steps import (
    Capture,
    Input,
    Ref,
    Step,
    as_text,
    create_header_speller,
    create_json_speller,
    waits_for,
)
from gateway.compare.strict_json import NotJson, loads_strict

AHEAD = 4
"""Steps queued per concurrent request, so that one slow answer does not delay the others."""

POLL = 0.5
"""Interval between two attempts of a read with a wait condition."""


class Stopped(Exception):
    """The comparison cannot continue; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Options:
    allow_writes: bool = False
    measure_noise: bool = False
    side_by_side: int = 4
    key_order: bool = False


@dataclass(slots=True)
class _Captured:
    """Values that the steps of one input captured on each side, or why there is none."""

    control: dict[str, Any] = field(default_factory=dict)
    candidate: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By name: the reason, and whether it is that writes were not allowed."""


@dataclass(frozen=True, slots=True)
class _Answers:
    control: Answer
    candidate: Answer
    again: Answer | None


@dataclass(slots=True)
class Run:
    """A comparison: its inputs, sides, options, and results."""

    inputs: Sequence[Input]
    control: Side
    candidate: Side
    findings: Findings
    pairing: Pairing
    options: Options
    token: str
    """Value of ``${run}``."""
    own: tuple[str, str]
    """Values of ``${own}`` for control and candidate: of equal length, and found nowhere else."""
    progress: Callable[[int, int], None] = lambda _done, _all: None
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    stopped: str = ""
    _captured: dict[str, _Captured] = field(default_factory=dict)
    _heard: set[str] = field(default_factory=set)

    async def play(self) -> None:
        """Sends and compares all steps. If it ends early, ``stop_reason`` says why."""
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            for side in (self.control, self.candidate):
                await stack.enter_async_context(side.open())
            try:
                await self._reach()
                await self._play([step for one in self.inputs for step in one.steps])
            except Stopped as stopped:
                self.stopped = str(stopped)
        self.seconds = time.monotonic() - started

    async def _reach(self) -> None:
        """Checks that both sides accept connections before anything is sent; raises ComparisonStopped."""
        for side in (self.control, self.candidate):
            try:
                await side.reach()
            except NoAnswer as why:
                raise Stopped(f"{side.name} at {side.url} cannot be reached: {why}") from None

    async def _play(self, steps: list[Step]) -> None:
        gate = asyncio.Semaphore(self.options.side_by_side)
        begun: deque[tuple[int, asyncio.Task[_Answers | NotCompared]]] = deque()
        try:
            for index, (step, needs) in enumerate(zip(steps, waits_for(steps), strict=True)):
                while begun and (
                    begun[0][0] < needs or len(begun) >= AHEAD * self.options.side_by_side
                ):
                    await self._compare(steps, *begun.popleft())
                task = asyncio.create_task(self._ask(gate, step, needs))
                begun.append((index, task))
            while begun:
                await self._compare(steps, *begun.popleft())
        finally:
            await _cancelled([task for _, task in begun])

    # Asking

    async def _ask(self, gate: asyncio.Semaphore, step: Step, needs: int) -> _Answers | NotCompared:
        captured = self._captured_of(step)
        if lost := [captured.lost[name] for name in sorted(step.names) if name in captured.lost]:
            return self._not(step, *lost[0])
        if not step.reads and not self.options.allow_writes:
            return self._not(step, "a write; --allow-writes sends writes", unsent=True)
        control = self._sent(step, {OWN: self.own[0], **captured.control}, str)
        candidate = self._sent(
            step,
            {OWN: self.own[1], **captured.candidate},
            lambda text: self.pairing.translated(text, needs),
        )
        async with gate:
            return await self._both(step, control, candidate)

    async def _both(self, step: Step, control: Sent, candidate: Sent) -> _Answers | NotCompared:
        got = await asyncio.gather(
            self._until(self.control, control, step),
            self._until(self.candidate, candidate, step),
        )
        one, other = got
        if isinstance(one, Answer) and isinstance(other, Answer):
            again = await self._again(step, control)
            return _Answers(one, other, again)
        failures = zip((self.control, self.candidate), got, strict=True)
        return self._not(
            step, "; ".join(f"{side.name}: {why}" for side, why in failures if isinstance(why, str))
        )

    async def _until(self, side: Side, sent: Sent, step: Step) -> Answer | str:
        """Returns the answer, or the reason why there is none."""
        patience = step.until.seconds if step.until else 0.0
        ends = time.monotonic() + patience
        try:
            while True:
                answer = await side.ask(sent)
                if step.until is None or time.monotonic() >= ends:
                    return answer
                if _value(answer, step.until.path) == step.until.value:
                    return answer
                await asyncio.sleep(POLL)
        except NoAnswer as error:
            return str(error)

    async def _again(self, step: Step, control: Sent) -> Answer | None:
        if not self.options.measure_noise or not step.reads:
            return None
        with suppress(NoAnswer):
            return await self.control.ask(control)
        return None

    def _sent(self, step: Step, values: Mapping[str, Any], literal: Callable[[str], str]) -> Sent:
        known = {RUN: self.token, **values}

        def in_target(ref: Ref) -> str:
            return quote(as_text(known[ref.name]), safe="", errors="replace")

        target = step.target.filled(in_target, literal)
        text = None if step.body is None else step.body.filled(create_json_speller(known), literal)
        body = None if text is None else text.encode(errors="replace")
        spell = create_header_speller(known)
        headers = {name: one.filled(spell, literal) for name, one in step.headers.items()}
        return Sent(step.method, target, body, headers, step.key)

    # Comparing

    async def _compare(
        self, steps: list[Step], index: int, task: asyncio.Task[_Answers | NotCompared]
    ) -> None:
        step, got = steps[index], await task
        if isinstance(got, NotCompared):
            self._tell(step, got)
        else:
            self._stop_at_a_wrong_key(step, got)
            self._find(step, index, got)
            self._capture(step, got)
        self.progress(index + 1, len(steps))

    def _find(self, step: Step, index: int, got: _Answers) -> None:
        differ = self._differ(step, index, self.pairing)
        itself = None
        if got.again is not None:
            # Control's ids do not change between two identical reads.
            twice = self._differ(step, index, Pairing(apart=False))
            itself = twice.answers(got.control, got.again)
        # Candidate's own text is replaced by control's, so that the two count as equal.
        own, other = (one.encode() for one in self.own)
        candidate = replace(got.candidate, body=got.candidate.body.replace(other, own))
        self.findings.compared(
            step,
            self._shown(step),
            (got.control.status, candidate.status),
            differ.answers(got.control, candidate),
            itself=itself,
            alike=differ.are_alike,
        )
        self.findings.excused.update(differ.excused)

    def _differ(self, step: Step, index: int, pairing: Pairing) -> Differ:
        return Differ(
            step.rules if self.options.allow_writes else step.rules.for_reads,
            pairing,
            operation=step.asked.name,
            step=index,
            key_order=self.options.key_order,
        )

    def _tell(self, step: Step, got: NotCompared) -> None:
        captured = self._captured_of(step)
        if not step.names.isdisjoint(captured.lost):
            self.findings.skipped.append(got)
        elif got.unsent:
            self.findings.not_sent.append(got)
        else:
            self.findings.failed.append(got)
        what = "is a write and was not sent" if got.unsent else "was not compared"
        for name, capture in step.captures.items():
            if capture.recorded and step.reads:
                captured.control[name] = captured.candidate[name] = capture.recorded
            else:
                why = f"needs the result of step {step.number}, which {what}"
                captured.lost.setdefault(name, (why, got.unsent))

    def _capture(self, step: Step, got: _Answers) -> None:
        captured = self._captured_of(step)
        for name, capture in step.captures.items():
            one = _captured_value(step, capture, got.control)
            other = _captured_value(step, capture, got.candidate)
            if one is None or other is None:
                side, answer = (
                    ("control", got.control) if one is None else ("candidate", got.candidate)
                )
                where = self.findings.viewer.eye.path(capture.path)
                why = f"needs {where} of step {step.number}, but the {answer.status} of {side} does not contain it"
                captured.lost[name] = (why, False)
            else:
                captured.control[name], captured.candidate[name] = one, other

    def _stop_at_a_wrong_key(self, step: Step, got: _Answers) -> None:
        """Stops if a side refuses its API key before it has accepted it once; raises ComparisonStopped.

        All further answers would be the same refusal.
        """
        if step.key != "own":
            return
        for side, answer in ((self.control, got.control), (self.candidate, got.candidate)):
            if side.name in self._heard:
                continue
            if answer.status in (401, 403) and _code(answer) == "invalid_api_key":
                name = f"{side.name.upper()}_API_KEY"
                raise Stopped(
                    f"{side.name} refuses its API key ({answer.status} invalid_api_key); check {name}"
                )
            if step.asked.needs_a_key and answer.status < 500:
                self._heard.add(side.name)

    def _captured_of(self, step: Step) -> _Captured:
        return self._captured.setdefault(step.source, _Captured())

    def _not(self, step: Step, why: str, unsent: bool = False) -> NotCompared:
        return NotCompared(step.source, step.number, step.name, self._shown(step), why, unsent)

    def _shown(self, step: Step) -> str:
        """The redacted request line, with placeholders as in the input."""
        target = step.target.filled(_as_written)
        return f"{step.method} {self.findings.viewer.eye.target(target)}"


def _as_written(ref: Ref) -> str:
    return ref.name if ID.fullmatch(ref.name) else f"${{{ref.name}}}"


async def _cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _body(answer: Answer) -> Any:
    try:
        return loads_strict(answer.body)
    except NotJson:
        return None


def _value(answer: Answer, path: tuple[str | int, ...]) -> Any:
    value = _body(answer)
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _captured_value(step: Step, capture: Capture, answer: Answer) -> Any:
    """The value to capture; None if the answer does not contain it."""
    if not capture.recorded:
        value = _value(answer, capture.path) if answer.is_good else None
        return None if isinstance(value, dict | list) else value
    if capture.recorded in IN_TEXT.findall(answer.body.decode(errors="replace")):
        return capture.recorded
    value = _value(answer, capture.path)
    if isinstance(value, str) and ID.fullmatch(value):
        return value
    return capture.recorded if step.reads else None


def _code(answer: Answer) -> Any:
    return _value(answer, ("errors", 0, "code"))


def check_playable(inputs: Sequence[Input]) -> None:
    """Raises InputError if the inputs contain no request to send."""
    if not any(one.steps for one in inputs):
        told = "; ".join(f"{one.name}: {_nothing(one)}" for one in inputs)
        raise Unusable(f"there are no requests to send ({told})")


def _nothing(one: Input) -> str:
    left = [f"{why}: {count}" for why, count in one.left_out.items()]
    return ", ".join(left) or "no requests"
