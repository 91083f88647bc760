"""The types that flows are written with: requests, steps, answers, failures and operations.

A *flow* is a generator function that carries out one operation: it yields the steps to perform and
returns the answer. It does no I/O and has no clock or randomness. It can therefore be tested
without an event loop, and an interrupted flow is resumed by replaying the results of its steps.

If a step fails, the executor throws a ``Failure`` into the flow at its ``yield``. A flow undoes its
earlier calls after ``Refused``, but never after ``Unknown``: the write may have been executed, so the
gateway first finds out whether it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from mappings.failures import Invalid, Problem, ProblemList, Refused, list_enclosing_fields

JSON = Any
"""``str``, ``Decimal``, ``int``, ``bool``, ``None``, ``dict`` or ``list``.

Never a ``float``: amounts must survive a round trip unchanged.
"""


class Vocabulary(msgspec.Struct, frozen=True):
    """The real words of each side for the terms that the documents neutralize (``[vocabulary]``).

    The legacy labels appear in ``methodDisplay`` and in a summary's ``displayName`` and
    ``accountType``. An empty label defaults to the capitalized wallet word; an empty account type
    defaults to the wallet or service word unchanged.
    """

    legacy_wallet: str = "wallet"
    legacy_service: str = "service"
    legacy_service_total: str = "ServiceTotal"
    legacy_avatar_url: str = "avatarUrl"
    legacy_wallet_method_display: str = ""
    legacy_bank_method_display: str = "Bank Transfer"
    legacy_wallet_display_name: str = ""
    legacy_bank_display_name: str = "Bank Transfer"
    legacy_wallet_account_type: str = ""
    legacy_service_account_type: str = ""
    current_wallet: str = "wallet"
    current_avatar_url: str = "avatarUrl"
    current_balance_path: str = "/v1/balance"
    current_summary_path: str = "/v1/batch/{id}/summary"
    current_batch_currency: str = "currency"


class LegacyOptions(msgspec.Struct, frozen=True):
    """Options of the translation that the operator sets (``[legacy]``).

    They are stored with each write, because its flow is replayed with the same ones. A new one needs
    a default, which is that of the writes of earlier versions.
    """

    government_ids: Literal["keep", "replace"] = "keep"
    holdup: Literal["remember", "refuse"] = "remember"
    primary_currency: Literal["both", "flat", "nested"] = "both"
    account_number_from_iban: Literal["auto", "always", "never"] = "auto"
    verify_before_start: Literal["warn", "refuse", "off"] = "warn"
    send_memo: bool = True


# Requests and answers.


class Request(msgspec.Struct, frozen=True):
    """A legacy request that has passed routing, authentication, the rate limit and body validation.

    Ids and words are those of the current interface. ``body`` conforms to the operation's
    ``body_shape``; values that did not were removed and are listed in ``problems``. A flow must not
    write while there are any problems. ``query`` contains no empty parameters.

    ``seed`` is unique to the request; the ids that the gateway generates are derived from it.
    ``api_keys`` are the caller's own keys, which answers must mask. ``imported_ids`` maps current
    ids to the imported legacy ids of the same objects: before the import, an identical request
    named these objects by other ids. ``full_body_digest`` is set if ``body`` lacks fields that the
    client sent: a request with others is not identical.
    """

    now: datetime
    seed: str = ""
    ids: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    body: JSON = None
    options: LegacyOptions = LegacyOptions()
    problems: tuple[Problem, ...] = ()
    api_keys: tuple[str, ...] = ()
    imported_ids: Mapping[str, str] = {}
    full_body_digest: str = ""

    def __repr__(self) -> str:
        return "Request(…)"  # it has the caller's keys

    def raise_if_invalid(self, problems: Iterable[Problem]) -> None:
        """Raises Invalid if body validation or the flow found any problem.

        Reports only the first problem of a field, and none inside a field that was removed.
        """
        # A field with an invalid value was removed, so a flow would also report it as missing.
        refused_fields = {problem.field for problem in self.problems if problem.field}
        additional = ProblemList()
        for finding in problems:
            if refused_fields.isdisjoint(list_enclosing_fields(finding.field or "")):
                additional.add_problem(finding)
        if self.problems or additional:
            raise Invalid(*self.problems, *additional, omitted_count=additional.more)


class Answer(msgspec.Struct, frozen=True):
    """The body of a successful legacy response (status 200), without ``"ok": true``.

    ``notices`` are messages for the operator's log; they contain no personal data.
    """

    body: Mapping[str, JSON]
    notices: tuple[str, ...] = ()


# The steps of a flow.


class Call(msgspec.Struct, frozen=True):
    """One request of the current interface. Yields the body of its 2xx response.

    ``path`` is below ``/v1``. ``field_map`` maps each field of ``body`` (``address.city``) to the
    legacy field that the client sent, so that a refusal can name the client's own field.

    ``probe_ids`` marks a call of an *optional endpoint*, which the document does not list. If the
    service lacks it, NoSuchOperation is thrown. A single refusal does not prove that: it takes two,
    each followed by a read that shows the batch and payment that the call names. For a call that
    names none, such as a list, any successful documented read counts. The second call of a write
    that is not ``is_idempotent`` has an empty body, since the first may have been executed.

    ``reconcile`` is the rule that finds out, by reads, whether a write without a response was
    executed. It searches for an object with the fields ``match_fields``, or with those of the whole
    body if that is None. A write that is ``only_while_client_waits`` is never sent by the
    background reconciler. A cleanup does not stop the flow if its outcome stays unknown: it counts
    as refused unless there is proof that it was executed. ``undo_of`` is the refusal because of
    which a call undoes earlier ones; it is repeated until the service confirms it, answers 404, or
    refuses it, which is left to an operator.

    ``in_doubt`` is recorded as soon as the outcome is unknown, provided that its condition still holds.
    """

    method: str
    path: str
    body: JSON = None
    query: Mapping[str, str] = {}
    field_map: Mapping[str, str] = {}
    probe_ids: tuple[str, ...] | None = None
    is_idempotent: bool = True
    reconcile: OutcomeRule | None = None
    only_while_client_waits: bool = False
    is_cleanup: bool = False
    undo_of: Refused | None = None
    match_fields: JSON = None
    in_doubt: CompareAndSet | None = None
    is_read: bool = False
    """Set here."""

    def __post_init__(self) -> None:
        if self.method == "GET":
            msgspec.structs.force_setattr(self, "is_read", True)
        # Checked here, so that no flow can send a write whose outcome could stay unknown forever.
        elif self.reconcile is None:
            raise TypeError("a write needs a rule that finds out whether it was executed")


MAX_PARALLEL_CALLS = 8
"""Concurrent reads of one request."""


class Parallel(msgspec.Struct, frozen=True):
    """Independent reads, sent concurrently. Yields their results in order.

    The result of a failed read is the exception that a single ``Call`` would have thrown.
    """

    calls: Sequence[Call]


class ListQuery(msgspec.Struct, frozen=True):
    """A filtered, sorted page of a list. Yields a ``ListPage``; the executor chooses the strategy.

    ``native_query`` is the query with which the service answers it in one call, or None if the
    service cannot. Otherwise the executor reads all rows that pass ``prefilter``, drops those that
    ``is_hidden``, keeps those that ``is_match``, and sorts them by ``sort_key``, then by id;
    without a sort key the rows stay in the order of the service.

    ``excluded_ids`` are rows that the client must not see although the service lists them. A list is
    ``is_indexed`` if its rows have an update time by which the service can filter, so that a cached
    copy can be refreshed. It is ``is_sorted_by_id`` if the client sorts by id: legacy ids sort differently from
    the current ids that ``sort_key`` returns.
    """

    path: str
    page: int
    page_size: int
    is_hidden: Callable[[JSON], bool]
    is_match: Callable[[JSON], bool]
    sort_key: Callable[[JSON], Any] | None = None
    is_descending: bool = False
    native_query: Mapping[str, str] | None = None
    prefilter: Mapping[str, str] = {}
    excluded_ids: frozenset[str] = frozenset()
    is_indexed: bool = False
    is_sorted_by_id: bool = False

    @property
    def list_field(self) -> str:
        """The field of a response that contains the list."""
        return self.path.rpartition("/")[2]

    @property
    def scan_sort(self) -> Mapping[str, str]:
        """The sort order to request while reading all rows."""
        return {"orderBy": "createdAt", "sortBy": "asc"} if self.is_indexed else {}


class ListPage(msgspec.Struct, frozen=True):
    """One page of rows, and its ``meta``."""

    rows: Sequence[JSON]
    meta: Mapping[str, int]


MAX_READ_LAG = timedelta(minutes=1)
"""Time for which the service may not show a change. Later, what it shows was changed elsewhere."""


class LoadFacts(msgspec.Struct, frozen=True):
    """Loads the facts that the gateway stores about an object of the tenant.

    Yields a mapping, empty if nothing is stored. Without ``id`` it yields the facts of all objects
    of the kind, or of those in ``ids``, by id. With both, of the kind "payments", the entries are
    only those of a draft with an id in ``ids``, and none if its payments have no rows. Four kinds
    are special: "abandoned" yields the redirects of superseded batches only, "legacy id" the legacy
    ids of the objects in ``ids``, "may exist" the first and last time, by operation id, at which
    batches were made that may exist or whose outcome is open, unless the batch in ``ids`` is known
    to be another write's, and "changed", by path, the id that each change of the object in ``ids`` within
    ``MAX_READ_LAG`` created, the time of the change, and the time that the service shows with it, as far
    as it is known; a signed one counts for its recipient.
    """

    kind: str
    id: str | None = None
    ids: tuple[str, ...] | None = None


class CompareAndSet(msgspec.Struct, frozen=True):
    """Updates the stored facts of an object; a fact of None is deleted. Yields None.

    If the stored facts differ from ``expected``, nothing is stored and Conflict is thrown: of two
    concurrent changes of an object, one wins. The facts of the kind "draft payments" are the entries
    of a draft by payment id; each is a row, and "payments" yields them, in the order in which they
    were added, until that kind is stored itself. The ``linked`` updates are stored in the same
    transaction; if they are very many, they must not expect anything. ``created_ids`` are objects
    that exist from then on or no longer, so that their deletion is recognized; they are few. Of an
    update that names its own object there, nothing is expected to be stored yet.
    """

    kind: str
    id: str
    facts: Mapping[str, JSON]
    expected: Mapping[str, JSON] = {}
    linked: Sequence[CompareAndSet] = ()
    created_ids: Sequence[str] = ()

    @property
    def members(self) -> Iterator[CompareAndSet]:
        """Iterates over this update and all linked ones."""
        yield self
        for member in self.linked:
            yield from member.members


class AwaitFacts(msgspec.Struct, frozen=True):
    """Waits until another request has finished with an object. Yields the object's facts then.

    ``condition`` tells from the facts whether it has. Conflict is thrown if it has not within the
    timeout of a call to the service. Of the kind "being created" they are the times, as for the
    kind "may exist", of the batches whose outcome is open.
    """

    kind: str
    id: str
    condition: Callable[[Mapping[str, JSON]], bool]


Step = Call | Parallel | ListQuery | LoadFacts | CompareAndSet | AwaitFacts
Flow = Generator[Step, Any, Answer]
SubFlow = Generator[Step, Any, Any]
"""A part of a flow, which returns a value to it."""


# Reconciliation of writes whose outcome is unknown.


class InDoubtWrite(msgspec.Struct, frozen=True):
    """A write that was sent but not answered, as an outcome rule sees it.

    ``not_before`` is the earliest time, by the service's clock, at which it can have been executed.
    ``claimed_ids`` are the objects that are known to result from other writes. ``identical_count``
    is the number of writes in doubt that ask for the same, including this one. An operator may have
    looked up the created object (``operator_object_id``), or found that the write was executed
    (``is_confirmed_by_operator``). If ``is_recent``, what the service shows may be from before changes
    that precede the write (see ``MAX_READ_LAG``).
    """

    not_before: datetime
    claimed_ids: frozenset[str] = frozenset()
    identical_count: int = 1
    operator_object_id: str | None = None
    is_confirmed_by_operator: bool = False
    is_recent: bool = False


class Confirmed(msgspec.Struct, frozen=True):
    """The write was executed; ``body`` is the response to assume."""

    body: JSON = {}
    object_id: str | None = None


class Absent(msgspec.Struct, frozen=True):
    """The service shows no effect of the write.

    This proves that it was not executed only if two reads agree, both made after the time when it
    could last have been executed. If ``is_old_state_shown``, it also outweighs an operator's word:
    the service shows what the write would have changed.
    """

    is_old_state_shown: bool = False


class MayExist(Absent, frozen=True):
    """A batch may have been created, but the service lists none, or too many: nobody can find it.

    Or a write was made that its client itself looks for.

    It pays nobody unless it is started, so the client may safely create another.
    """

    reason: str = "the service lists no batches"


class Inconclusive(msgspec.Struct, frozen=True):
    """The reads do not decide it; ``reason`` tells the operator, who has to look elsewhere.

    If ``is_partly_shown``, it outweighs the word of an operator that the write did not happen.
    ``candidate_ids`` are the objects of which too many match.
    """

    reason: str
    is_partly_shown: bool = False
    candidate_ids: tuple[str, ...] = ()


class Unreadable(Inconclusive, frozen=True):
    """The service could not be read; a later attempt may succeed."""


WriteOutcome = Confirmed | Absent | Inconclusive
OutcomeReads = Generator[Step, Any, WriteOutcome]
OutcomeRule = Callable[[InDoubtWrite], OutcomeReads]
"""A rule that finds out the outcome of a write. It may yield any step of a flow except writes."""


# Operations.


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the legacy interface, and the flow that carries it out.

    ``path`` is below ``/v1``, with ids as ``{name}`` and vocabulary words as ``<name>``. The shapes
    are those of the request body, the query parameters and the answer. An ``is_keyless`` operation
    needs no API key. ``assumption`` is what the translation presumes without proof in the
    documents.

    The name of the flow function is the name of the operation in metrics, logs and stored records.
    """

    method: str
    path: str
    flow: Callable[[Request], Flow]
    exactness: Literal["exact", "emulated", "inferred", "lossy"]
    exactness_reason: str
    answer_shape: Any
    body_shape: Any = None
    query_shape: Any = None
    is_keyless: bool = False
    assumption: str = ""
    can_write: bool = False
    is_write: bool = field(init=False)
    """Whether it can change anything; ``can_write`` marks a GET that submits a draft."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        # Computed once, because every request asks for them.
        object.__setattr__(self, "is_write", self.can_write or self.method != "GET")
        object.__setattr__(self, "name", self.flow.__name__)

    @property
    def section(self) -> str:
        """The section of the legacy document that lists it."""
        return next(section for path, section in _SECTIONS.items() if self.path.startswith(path))


_SECTIONS = {
    "/recipients/{id}/payout-methods": "4.2",
    "/recipients": "4.1",
    "/batches/{id}/payments": "4.4",
    "/batches": "4.3",
    "/payments": "4.4",
    "/profile/balances": "4.5",
    "/geography": "4.6",
}
"""Beginning of a path to the section; the longest comes first."""
