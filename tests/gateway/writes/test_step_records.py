"""The results of steps, as they are stored for a replay."""

from __future__ import annotations

import pytest

from gateway.admission.load import Overloaded
from gateway.writes import step_records
from mappings.effects import Call
from mappings.errors import NOT_FOUND
from mappings.failures import (
    CircuitOpen,
    ClientDisconnected,
    Conflict,
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    Refused,
    Unreachable,
)

FAILURES = [
    CircuitOpen("open", retry_after=3),
    ClientDisconnected(),
    Conflict("batch"),
    Halted(NOT_FOUND),
    Invalid(NOT_FOUND),
    NoSuchOperation("PATCH /batches"),
    Overloaded("too many", 3),
    Refused(404, [NOT_FOUND]),
    Unreachable("down"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_every_failure_of_a_step_can_be_loaded_again(failure: Failure) -> None:
    """A read that met an open circuit breaker was stored, and its operation never finished."""
    steps = step_records.encode_steps([(Call("GET", "/recipients/R-1"), failure)])
    ((_, outcome),) = step_records.decode_steps(steps)
    assert isinstance(outcome, Failure)
    assert isinstance(failure, type(outcome))
    assert str(outcome) == str(failure)
