"""The states of operations and of their writes, and the only changes between them.

The update of an operation takes its allowed sources from the first table; an outcome is recorded of a
sent write only, and one with an outcome is never sent again, as in the second. The simulation
refuses every other change, and ``states.md`` prints them.
"""

from dataclasses import dataclass

# Values of the database, which keep the names of the first version.
RUNNING, IN_DOUBT, DONE, ANSWERED, UNDONE = "running", "unsettled", "done", "answered", "undone"
OPEN = (RUNNING, IN_DOUBT, DONE)

SENT, REFUSED, UNSENT, CONFIRMED, ABSENT = "sent", "refused", "unsent", "happened", "did not"
NO_ENDPOINT, MAY_EXIST = "no path", "may exist"
"""The states of a write, besides ``answered``."""

OPERATION_STATES = {
    RUNNING: "a process runs its flow, or did until it ended",
    IN_DOUBT: "a write was sent and has no proof, or what follows it cannot be read",
    DONE: "its flow has ended, and its client may not have the response",
    ANSWERED: "its client has the response",
    UNDONE: "nothing of it happened, or all of it was undone",
}
WRITE_STATES = {
    SENT: "recorded before it was sent; whether it happened is not known",
    ANSWERED: "the service confirmed it",
    REFUSED: "the service refused it with a proof (contract, section 7)",
    NO_ENDPOINT: "the service has no such endpoint",
    UNSENT: "nothing of it left this machine",
    CONFIRMED: "it happened: a later reading or an operator says so",
    ABSENT: "it did not happen: two readings or an operator say so",
    MAY_EXIST: "a batch that nobody can look for, and that is never started",
}


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a row; ``source`` is None if the row is inserted."""

    source: str | None
    event: str
    guard: str
    target: str


_OWN = "own fence"

OPERATION_TRANSITIONS = (
    Transition(
        None,
        "the first change of a request",
        "no identical operation is open, unless others overwrote it; the Idempotency-Key is new; "
        "writes are not frozen; a start needs a state that is not restored",
        RUNNING,
    ),
    Transition(
        RUNNING,
        "a step is recorded, or a write before it is sent",
        f"{_OWN}; the first write: not frozen; a write: its batch is not superseded",
        RUNNING,
    ),
    Transition(
        RUNNING,
        "taken over",
        "the lease of its process has expired; fence + 1",
        RUNNING,
    ),
    Transition(RUNNING, "a write has no proof, or a later read fails", _OWN, IN_DOUBT),
    Transition(IN_DOUBT, "taken over by a retry or the reconciler", "fence + 1", RUNNING),
    Transition(RUNNING, "the flow returned", f"{_OWN}; no write is still sent", DONE),
    Transition(
        RUNNING,
        "it ended without a response that has to be delivered",
        f"{_OWN}; a read, a response of the legacy service, or a refusal kept for a key",
        ANSWERED,
    ),
    Transition(RUNNING, "the flow failed", f"{_OWN}; no write is still sent", UNDONE),
    Transition(
        DONE,
        "taken over by a retry",
        "its response is not stored, so its steps are replayed; fence + 1",
        RUNNING,
    ),
    Transition(DONE, "delivered, or a day old", "the client acknowledged every byte", ANSWERED),
    Transition(
        DONE,
        "an operator corrects the outcome of a forwarded write, or the legacy service refutes it",
        "its response is not known; fence",
        IN_DOUBT,
    ),
    Transition(
        ANSWERED,
        "the connection is reset",
        "the response is still stored, which it is for 90 seconds",
        DONE,
    ),
    Transition(
        IN_DOUBT,
        "an operator closes it",
        "it has created something, so that a retry must not; nobody has taken it over",
        DONE,
    ),
    Transition(
        IN_DOUBT,
        "an operator closes it",
        "another write happened; nobody has taken it over",
        ANSWERED,
    ),
    Transition(
        IN_DOUBT, "an operator closes it", "no write happened; nobody has taken it over", UNDONE
    ),
)

WRITE_TRANSITIONS = (
    Transition(None, "about to be sent", f"{_OWN}; see the operation", SENT),
    Transition(SENT, "signed again, because its timestamp was refused or is late", _OWN, SENT),
    Transition(SENT, "a readable 2xx", _OWN, ANSWERED),
    Transition(SENT, "a 4xx in the service's JSON error shape", _OWN, REFUSED),
    Transition(SENT, "a 404 of an optional endpoint, while other reads work", _OWN, NO_ENDPOINT),
    Transition(SENT, "no connection", f"{_OWN}; no byte of it was sent", UNSENT),
    Transition(
        SENT,
        "found by reading, or an operator names it",
        f"{_OWN}; exactly one match, which no other write claims",
        CONFIRMED,
    ),
    Transition(
        SENT,
        "not found, or an operator says so",
        f"{_OWN}; two readings, 5 s apart, none before stamp + 30 s + clock offset",
        ABSENT,
    ),
    Transition(
        SENT,
        "a batch created at a service that lists none, after the same time",
        _OWN,
        MAY_EXIST,
    ),
    Transition(
        SENT,
        "not found, as above, and sent again",
        f"{_OWN}; an earlier write of the operation happened, and this one is no payment or start",
        SENT,
    ),
    Transition(
        CONFIRMED,
        "an operator corrects it, or the legacy service refutes it",
        "forwarded, and confirmed by an operator; the operation is reopened with it",
        SENT,
    ),
    Transition(
        UNSENT,
        "sent again",
        f"{_OWN}; an earlier write of the operation happened, and this one is of its recipient",
        SENT,
    ),
)


def list_source_states(transitions: tuple[Transition, ...], target: str) -> tuple[str, ...]:
    """Returns the states from which a row may change to ``target``."""
    sources = (row.source for row in transitions if row.target == target)
    return tuple(dict.fromkeys(source for source in sources if source is not None))


STATE_DESCRIPTIONS = {
    ABSENT: "did not happen",
    UNSENT: "not sent",
    NO_ENDPOINT: "not done: the service has no such path",
}


def describe_write_state(state: str) -> str:
    """Describes a state of a write, or an outcome that an operator recorded."""
    return STATE_DESCRIPTIONS.get(state, state)


def build_operator_outcome_audit_text(write_name: str, operator_outcome: str) -> str:
    """Builds the audit log text for an outcome that an operator recorded."""
    return f"recorded the outcome of {write_name}: {describe_write_state(operator_outcome)}"
