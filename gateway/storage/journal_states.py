"""The states of operations and of their writes; ``operations`` describes them."""

RUNNING, UNSETTLED, DONE, ANSWERED, UNDONE = "running", "unsettled", "done", "answered", "undone"
OPEN = (RUNNING, UNSETTLED, DONE)

SENT, REFUSED, UNSENT, HAPPENED, DID_NOT = "sent", "refused", "unsent", "happened", "did not"
NO_PATH, MAY_EXIST = "no path", "may exist"
"""The states of a write, besides ``answered``."""

IN_WORDS = {
    DID_NOT: "did not happen",
    UNSENT: "not sent",
    NO_PATH: "not done: the service has no such path",
}


def in_words(state: str) -> str:
    """A state of a write, or an outcome that an operator recorded, as text for operators."""
    return IN_WORDS.get(state, state)


def told_of(named: str, told: str) -> str:
    """The audit log text for an outcome that an operator recorded."""
    return f"told of {named}: {in_words(told)}"
