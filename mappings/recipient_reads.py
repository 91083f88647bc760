"""Loads the recipient that the request path names; most flows about recipients begin with this."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mappings.effects import JSON, Call, CompareAndSet, LoadFacts, Parallel, Step
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.objects import Facts, is_deleted_for_clients, is_legacy_status_still_valid

RecipientWithFacts = tuple[Mapping[str, JSON], Facts]


def load_recipient(recipient_id: str) -> Generator[Step, Any, RecipientWithFacts]:
    """Reads a recipient with GET /recipients/:id, and its stored facts.

    Raises Invalid ("not found") if it is archived or was deleted through the gateway.
    """
    facts: Facts = yield LoadFacts("recipient", recipient_id)
    # This needs no call, and holds even if the service could not delete the recipient.
    if facts.get("deleted"):
        raise Invalid(NOT_FOUND)
    recipient = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
    return recipient, (yield from delete_stale_status_fact(recipient_id, recipient, facts))


def load_recipient_and_call_result(
    recipient_id: str, call: Call
) -> Generator[Step, Any, tuple[RecipientWithFacts, Any]]:
    """Reads a recipient and makes one more read concurrently."""
    facts: Facts = yield LoadFacts("recipient", recipient_id)
    if facts.get("deleted"):
        raise Invalid(NOT_FOUND)
    recipient_result, call_result = yield Parallel(
        [Call("GET", f"/recipients/{recipient_id}"), call]
    )
    # The recipient's result comes first: if it does not exist, the other read does not matter.
    for result in (recipient_result, call_result):
        if isinstance(result, Exception):
            raise result
    result = recipient_result["recipient"]
    return (result, (yield from delete_stale_status_fact(recipient_id, result, facts))), call_result


def delete_stale_status_fact(
    recipient_id: str, recipient: Mapping[str, JSON], facts: Facts
) -> Generator[Step, Any, Facts]:
    """Deletes a stored status that no longer fits the service's; returns the remaining facts."""
    if is_deleted_for_clients(recipient, facts):
        raise Invalid(NOT_FOUND)
    word = facts.get("status")
    if word and not is_legacy_status_still_valid(word, recipient.get("status")):
        # The status has been changed elsewhere, and the service's value wins (contract, section 3).
        yield CompareAndSet("recipient", recipient_id, {"status": None})
        other_facts = {name: fact for name, fact in facts.items() if name != "status"}
        return {**other_facts, "status_shown_before": word}
    return facts
