"""The states of undertakings and of their writes; see ``undertakings``."""

RUNNING, UNSETTLED, DONE, ANSWERED, UNDONE = "running", "unsettled", "done", "answered", "undone"
OPEN = (RUNNING, UNSETTLED, DONE)

SENT, REFUSED, UNSENT, HAPPENED, DID_NOT = "sent", "refused", "unsent", "happened", "did not"
"""States of a write besides ``answered``."""


def in_words(state: str) -> str:
    """A write's state, or what somebody said of it, as operators read it."""
    return "did not happen" if state == DID_NOT else state
