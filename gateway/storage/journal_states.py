"""The states of undertakings and of their writes; see ``undertakings``."""

RUNNING, UNSETTLED, DONE, ANSWERED, UNDONE = "running", "unsettled", "done", "answered", "undone"
OPEN = (RUNNING, UNSETTLED, DONE)

SENT, REFUSED, UNSENT, HAPPENED, DID_NOT = "sent", "refused", "unsent", "happened", "did not"
NO_PATH, MAY_EXIST = "no path", "may exist"
"""States of a write besides ``answered``."""

IN_WORDS = {
    DID_NOT: "did not happen",
    UNSENT: "not sent",
    NO_PATH: "not done: the service has no such path",
}


def in_words(state: str) -> str:
    """A write's state, or what somebody said of it, as operators read it."""
    return IN_WORDS.get(state, state)


def told_of(named: str, told: str) -> str:
    """The act of an operator who said what became of a write."""
    return f"told of {named}: {in_words(told)}"
