"""Loading the recipient that the request path names, as most flows about recipients begin."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mappings.errors import NOT_FOUND
from mappings.grammar import JSON, Call, Invalid, Parallel, Recall, Record, Step
from mappings.objects import Facts, is_gone, is_status_word_valid

Found = tuple[Mapping[str, JSON], Facts]


def load_recipient(recipient_id: str) -> Generator[Step, Any, Found]:
    """Reads a recipient with GET /recipients/:id, and its stored facts.

    Raises Invalid ("not found") if it is archived or was deleted through the gateway.
    """
    facts = yield from load_recipient_facts(recipient_id)
    given = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
    return given, (yield from validate_recipient_facts(recipient_id, given, facts))


def load_recipient_with_call(
    recipient_id: str, call: Call
) -> Generator[Step, Any, tuple[Found, Any]]:
    """Reads a recipient and makes one more read concurrently."""
    facts = yield from load_recipient_facts(recipient_id)
    read, other = yield Parallel([Call("GET", f"/recipients/{recipient_id}"), call])
    for given in (read, other):
        if isinstance(given, Exception):
            raise given
    given = read["recipient"]
    return (given, (yield from validate_recipient_facts(recipient_id, given, facts))), other


def load_recipient_facts(recipient_id: str) -> Generator[Step, Any, Facts]:
    facts: Facts = yield Recall("recipient", recipient_id)
    # Known without a call, and true even if the service could not delete the recipient.
    if facts.get("deleted"):
        raise Invalid(NOT_FOUND)
    return facts


def validate_recipient_facts(
    recipient_id: str, given: Mapping[str, JSON], facts: Facts
) -> Generator[Step, Any, Facts]:
    """Deletes a stored status that no longer fits the service's; returns the remaining facts."""
    if is_gone(given, facts):
        raise Invalid(NOT_FOUND)
    word = facts.get("status")
    if word and not is_status_word_valid(word, given.get("status")):
        yield Record("recipient", recipient_id, {"status": None})
        kept = {name: fact for name, fact in facts.items() if name != "status"}
        return {**kept, "status_shown_before": word}
    return facts
