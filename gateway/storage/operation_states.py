"""The states of operations and of their writes; ``operations`` describes them."""

RUNNING, IN_DOUBT, DONE, ANSWERED, UNDONE = "running", "unsettled", "done", "answered", "undone"
OPEN = (RUNNING, IN_DOUBT, DONE)

SENT, REFUSED, UNSENT, CONFIRMED, ABSENT = "sent", "refused", "unsent", "happened", "did not"
NO_ENDPOINT, MAY_EXIST = "no path", "may exist"
"""The states of a write, besides ``answered``."""

STATE_DESCRIPTIONS = {
    ABSENT: "did not happen",
    UNSENT: "not sent",
    NO_ENDPOINT: "not done: the service has no such path",
}


def describe_write_state(state: str) -> str:
    """A state of a write, or an outcome that an operator recorded, as text for operators."""
    return STATE_DESCRIPTIONS.get(state, state)


def build_operator_outcome_audit_text(write_name: str, operator_outcome: str) -> str:
    """The audit log text for an outcome that an operator recorded."""
    return f"told of {write_name}: {describe_write_state(operator_outcome)}"
