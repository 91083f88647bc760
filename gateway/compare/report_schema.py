"""The report of a comparison: the shape that ``--json`` writes, and that the page shows.

``format`` and ``version`` stand first. Within a version fields may be added, and none is renamed,
removed or given another meaning. Values are as they may be shown: masked unless they were asked for.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

FORMAT = "payout-gateway compare"
VERSION = 1

Result = Literal["equal", "different", "could not run"]

EXIT_CODES: dict[Result, int] = {"equal": 0, "different": 1, "could not run": 2}


class Part(TypedDict):
    text: str
    differs: bool


class Value(TypedDict):
    """``type`` is a JSON type (``text``, ``number``, ``boolean``, ``null``, ``object``, ``list``) or ``nothing``."""

    type: str
    text: str
    parts: list[Part]


class Line(TypedDict):
    """A line of both answers around a difference; ``is_it`` where it is the difference itself.

    ``overlooked`` where the texts differ and that is no difference: paired ids, or a rule.
    """

    name: str
    control: Value
    candidate: Value
    differs: bool
    is_it: bool
    overlooked: bool


class Instance(TypedDict):
    """One example. ``control_path`` and ``candidate_path`` have indices: ``payments[3].id``."""

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
    around: list[Line]
    around_left_out: tuple[int, int]


class Group(TypedDict):
    """The same kind of difference at one path of one operation; ``count`` in ``answers`` answers."""

    operation: str
    request: str
    kind: str
    path: str
    field: str
    count: int
    answers: int
    notes: dict[str, int]
    examples: list[Instance]


class Operation(TypedDict):
    """``statuses`` counts ``control/candidate``, such as ``200/406``."""

    operation: str
    request: str
    compared: int
    equal: int
    different: int
    statuses: dict[str, int]


class Unasked(TypedDict):
    input: str
    step: int
    name: str
    request: str
    why: str


class ARule(TypedDict):
    """``used`` counts what it made no difference of."""

    kind: str
    path: str
    operation: str
    does: str
    reason: str
    origin: str
    used: int


class ASide(TypedDict):
    """Times in milliseconds; null where there were no answers."""

    url: str
    answers: int
    median_ms: float | None
    slowest_ms: float | None


class AnInput(TypedDict):
    name: str
    kind: str
    title: str
    steps: int
    left_out: dict[str, int]


class Counts(TypedDict):
    """Of steps; ``differences`` of groups of them."""

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
    control: ASide
    candidate: ASide
    inputs: list[AnInput]
    writes: Literal["sent", "not sent"]
    values: Literal["masked", "shown"]
    noise_measured: bool
    counts: Counts
    operations: list[Operation]
    differences: list[Group]
    noise: list[Group]
    not_sent: list[Unasked]
    skipped: list[Unasked]
    failed: list[Unasked]
    ids: Ids
    headers: list[str]
    rules: list[ARule]
