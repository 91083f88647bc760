"""Schema of the comparison report: what ``--json`` writes and the page renders.

``format`` and ``version`` come first. Within a version, fields may be added; none is renamed, removed
or given another meaning. Values are masked unless ``--show-values`` is given.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

FORMAT = "payout-gateway compare"
VERSION = 1

Result = Literal["equal", "different", "could not run"]

EXIT_CODES: dict[Result, int] = {"equal": 0, "different": 1, "could not run": 2}


class Value(TypedDict):
    """``type`` is a JSON type (``text``, ``number``, ``boolean``, ``null``, ``object``, ``list``) or ``nothing``."""

    type: str
    text: str


class ExampleEntry(TypedDict):
    """An example of a difference. Both paths have indices: ``payments[3].id``."""

    input: str
    step: int
    name: str
    request: str
    control_status: int
    candidate_status: int
    control_path: str
    candidate_path: str
    control: Value
    candidate: Value
    note: str


class DifferenceEntry(TypedDict):
    """All differences of one kind, path and operation: ``count`` of them in ``answers`` answers."""

    operation: str
    request: str
    kind: str
    path: str
    count: int
    answers: int
    notes: dict[str, int]
    examples: list[ExampleEntry]


class OperationEntry(TypedDict):
    """Totals of an operation. ``statuses`` counts pairs ``control/candidate``, such as ``200/406``."""

    operation: str
    request: str
    compared: int
    equal: int
    different: int
    statuses: dict[str, int]


class NotComparedEntry(TypedDict):
    input: str
    step: int
    name: str
    request: str
    why: str


class RuleEntry(TypedDict):
    """A rule. ``used`` counts the differences that it ignored."""

    kind: str
    path: str
    operation: str
    does: str
    reason: str
    origin: str
    used: int


class SideEntry(TypedDict):
    """Response times of a side in milliseconds; null if it gave no answer."""

    url: str
    answers: int
    median_ms: float | None
    slowest_ms: float | None


class InputEntry(TypedDict):
    name: str
    kind: str
    title: str
    steps: int
    left_out: dict[str, int]


class Counts(TypedDict):
    """Counts of steps, except ``differences``: the number of groups."""

    steps: int
    compared: int
    equal: int
    different: int
    not_sent: int
    skipped: int
    failed: int
    differences: int


class Ids(TypedDict):
    paired: int
    spelled_differently: int


class Report(TypedDict):
    format: str
    version: int
    result: Result
    exit_code: int
    sentence: str
    remarks: list[str]
    began: str
    seconds: float
    control: SideEntry
    candidate: SideEntry
    inputs: list[InputEntry]
    writes: Literal["sent", "not sent"]
    values: Literal["masked", "shown"]
    counts: Counts
    operations: list[OperationEntry]
    differences: list[DifferenceEntry]
    not_sent: list[NotComparedEntry]
    skipped: list[NotComparedEntry]
    failed: list[NotComparedEntry]
    ids: Ids
    headers: list[str]
    rules: list[RuleEntry]
