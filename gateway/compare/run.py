"""Runs a comparison: sends each step to both sides and compares the answers in order.

The two requests of a step are sent in parallel: data that changes between them would look like a
difference. Steps are sent one after the other, so that runs are repeatable and are no load for a
service.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

from gateway.compare.differences import Differ
from gateway.compare.endpoints import (
    ANSWERED_BY_HEADER,
    LEGACY_SERVICE,
    Answer,
    AnswerUnavailable,
    OutgoingRequest,
    Side,
)
from gateway.compare.findings import Findings
from gateway.compare.id_map import IdMap, is_same_id_kind
from gateway.compare.paths import Path
from gateway.compare.requests import ID_IN_TEXT, KEYED_OPERATIONS, OBJECT_ID
from gateway.compare.steps import (
    OWN_VARIABLE,
    RUN_VARIABLE,
    Capture,
    Input,
    Step,
    Template,
    encode_in_json,
    encode_in_target,
)
from gateway.compare.strict_json import InvalidJson, loads_strict

POLL_SECONDS = 0.5


ANSWERED_BY_CONTROL = "candidate passed it on to the legacy service: set the key to translate (`payout-gateway modes set`)"


class ComparisonStopped(Exception):
    """The comparison cannot continue; the message is the reason."""


class _NotCompared(NamedTuple):
    """Why a step is not compared. ``is_write_withheld``: it is a write, or needs the result of one,
    and writes were not allowed.
    """

    reason: str
    is_write_withheld: bool = False


@dataclass(slots=True)
class _CapturedValues:
    """Values that the steps of one input captured on each side, or why one is missing."""

    control: dict[str, Any] = field(default_factory=dict)
    candidate: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, _NotCompared] = field(default_factory=dict)


class _Answers(NamedTuple):
    control: Answer
    candidate: Answer


@dataclass(slots=True)
class Run:
    """A comparison: its inputs, its sides, whether it sends writes, and its results."""

    inputs: Sequence[Input]
    control: Side
    candidate: Side
    findings: Findings
    id_map: IdMap
    allow_writes: bool
    run_token: str
    """Value of ``${run}``."""
    own_values: tuple[str, str]
    """Values of ``${own}`` for control and candidate: of equal length, and found nowhere else."""
    progress: Callable[[int, int], None] = lambda _done, _all: None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    stop_reason: str = ""
    _captured_by_source: dict[str, _CapturedValues] = field(
        default_factory=lambda: defaultdict(_CapturedValues)
    )
    _accepted_sides: set[str] = field(default_factory=set)

    async def execute(self) -> None:
        """Sends and compares all steps. If it ends early, ``stop_reason`` says why."""
        started = time.monotonic()
        async with self.control.open(), self.candidate.open():
            try:
                await self._check_connections()
                steps = [step for input_file in self.inputs for step in input_file.steps]
                for index, step in enumerate(steps):
                    await self._run_step(step)
                    self.progress(index + 1, len(steps))
            except ComparisonStopped as stopped:
                self.stop_reason = str(stopped)
        self.seconds = time.monotonic() - started

    async def _check_connections(self) -> None:
        """Checks that both sides accept connections before anything is sent; raises ComparisonStopped."""
        for side in (self.control, self.candidate):
            try:
                await side.check_connection()
            except AnswerUnavailable as error:
                raise ComparisonStopped(
                    f"{side.name} at {side.url} cannot be reached: {error}"
                ) from None

    async def _run_step(self, step: Step) -> None:
        result = await self._send_step(step)
        if isinstance(result, _Answers):
            answered_by = result.candidate.headers.get(ANSWERED_BY_HEADER.lower())
            result = _NotCompared(ANSWERED_BY_CONTROL) if answered_by == LEGACY_SERVICE else result
        if isinstance(result, _NotCompared):
            self._record_not_compared(step, result)
        else:
            self._check_api_key(step, result)
            self._compare_answers(step, result)
            self._capture_values(step, result)

    # Requests

    async def _send_step(self, step: Step) -> _Answers | _NotCompared:
        captured = self._captured_by_source[step.source]
        if missing := sorted(step.placeholder_names & captured.missing.keys()):
            return captured.missing[missing[0]]
        if not step.is_read and not self.allow_writes:
            return _NotCompared("a write; --allow-writes sends writes", is_write_withheld=True)
        control = self._build_request(
            step, {OWN_VARIABLE: self.own_values[0], **captured.control}, str
        )
        candidate = self._build_request(
            step,
            {OWN_VARIABLE: self.own_values[1], **captured.candidate},
            self.id_map.replace_control_ids_in_text,
        )
        results = await asyncio.gather(
            self._send_until_condition_met(self.control, control, step),
            self._send_until_condition_met(self.candidate, candidate, step),
        )
        if isinstance(results[0], Answer) and isinstance(results[1], Answer):
            return _Answers(results[0], results[1])
        failures = zip((self.control, self.candidate), results, strict=True)
        reasons = [f"{side.name}: {result}" for side, result in failures if isinstance(result, str)]
        return _NotCompared("; ".join(reasons))

    async def _send_until_condition_met(
        self, side: Side, request: OutgoingRequest, step: Step
    ) -> Answer | str:
        """Returns the answer, or the reason why there is none."""
        # Each side waits on its own, because the two process a batch at different speeds.
        timeout_seconds = step.wait_condition.timeout_seconds if step.wait_condition else 0.0
        deadline = time.monotonic() + timeout_seconds
        try:
            while True:
                answer = await side.send(request)
                if step.wait_condition is None or time.monotonic() >= deadline:
                    return answer
                if _find_value(answer, step.wait_condition.path) == step.wait_condition.value:
                    return answer
                await asyncio.sleep(POLL_SECONDS)
        except AnswerUnavailable as error:
            return str(error)

    def _build_request(
        self, step: Step, values: Mapping[str, Any], format_literal: Callable[[str], str]
    ) -> OutgoingRequest:
        variables = {RUN_VARIABLE: self.run_token, **values}

        def fill(template: Template, encode: Callable[[Any, bool], str]) -> str:
            return template.fill(
                lambda placeholder: encode(variables[placeholder.name], placeholder.is_whole_value),
                format_literal,
            )

        body = None if step.body is None else fill(step.body, encode_in_json)
        return OutgoingRequest(
            step.method,
            fill(step.target, encode_in_target),
            None if body is None else body.encode(errors="replace"),
            step.key,
        )

    # Comparison

    def _compare_answers(self, step: Step, answers: _Answers) -> None:
        rules = step.rules if self.allow_writes else step.rules.rules_for_runs_without_writes
        differ = Differ(rules, self.id_map, operation=step.operation.name)
        # Candidate's own text is replaced by control's, so that the two count as equal.
        control_own, candidate_own = (own_value.encode() for own_value in self.own_values)
        candidate = replace(
            answers.candidate, body=answers.candidate.body.replace(candidate_own, control_own)
        )
        self.findings.record_comparison(
            step,
            self._format_request(step),
            (answers.control.status, candidate.status),
            differ.compare_answers(answers.control, candidate),
        )
        self.findings.rule_uses.update(differ.rule_uses)

    def _record_not_compared(self, step: Step, not_compared: _NotCompared) -> None:
        captured = self._captured_by_source[step.source]
        entry = {
            "input": step.source,
            "step": step.number,
            "name": step.name,
            "request": self._format_request(step),
            "why": not_compared.reason,
        }
        if not step.placeholder_names.isdisjoint(captured.missing):
            self.findings.skipped.append(entry)
            self.findings.needing_writes += not_compared.is_write_withheld
        elif not_compared.is_write_withheld:
            self.findings.not_sent.append(entry)
        else:
            self.findings.failed.append(entry)
        cause = (
            "is a write and was not sent" if not_compared.is_write_withheld else "was not compared"
        )
        for name, capture in step.captures.items():
            # A recorded id may still exist; later reads can use it although this answer is missing.
            if capture.recorded_value and step.is_read:
                captured.control[name] = captured.candidate[name] = capture.recorded_value
            else:
                reason = f"needs the result of step {step.number}, which {cause}"
                missing = not_compared._replace(reason=reason)
                captured.missing.setdefault(name, missing)

    def _capture_values(self, step: Step, answers: _Answers) -> None:
        captured = self._captured_by_source[step.source]
        sides = (
            ("control", answers.control, captured.control),
            ("candidate", answers.candidate, captured.candidate),
        )
        for name, capture in step.captures.items():
            for side, answer, values in sides:
                values[name] = _find_value_to_capture(step, answer, capture)
                if values[name] is None:
                    path = self.findings.redactor.redact_path(capture.path)
                    reason = f"needs {path} of step {step.number}, but the {answer.status} of {side} does not contain it"
                    captured.missing.setdefault(name, _NotCompared(reason))

    def _check_api_key(self, step: Step, answers: _Answers) -> None:
        """Stops if a side refuses its API key before it has accepted it once; raises ComparisonStopped.

        All further answers would be the same refusal.
        """
        # A step with a wrong key or none expects to be refused.
        if step.key != "own":
            return
        for side, answer in ((self.control, answers.control), (self.candidate, answers.candidate)):
            if side.name in self._accepted_sides:
                continue
            is_forbidden = answer.status in (401, 403)
            if is_forbidden and _find_value(answer, ("errors", 0, "code")) == "invalid_api_key":
                variable = f"{side.name.upper()}_API_KEY"
                raise ComparisonStopped(
                    f"{side.name} refuses its API key ({answer.status} invalid_api_key); check {variable}"
                )
            # A 5xx, or a path that needs no key, does not show whether the key was accepted.
            if step.operation.name in KEYED_OPERATIONS and answer.status < 500:
                self._accepted_sides.add(side.name)

    def _format_request(self, step: Step) -> str:
        """Returns the redacted request line, with placeholders as in the input."""
        target = step.target.fill(
            lambda each: each.name if OBJECT_ID.fullmatch(each.name) else f"${{{each.name}}}"
        )
        return f"{step.method} {self.findings.redactor.redact_target(target)}"


def _find_value_to_capture(step: Step, answer: Answer, capture: Capture) -> Any:
    """Returns the value to capture; None if the answer does not contain it."""
    value = _find_value(answer, capture.path)
    if not capture.recorded_value:
        return value if answer.is_success and not isinstance(value, dict | list) else None
    # The side has the recorded object itself, perhaps at another place of its answer.
    if capture.recorded_value in ID_IN_TEXT.findall(answer.body.decode(errors="replace")):
        return capture.recorded_value
    if isinstance(value, str) and is_same_id_kind(value, capture.recorded_value):
        return value
    return capture.recorded_value if step.is_read else None


def _find_value(answer: Answer, path: Path) -> Any:
    try:
        return reduce(getitem, path, loads_strict(answer.body))
    except (InvalidJson, KeyError, IndexError, TypeError):
        return None
