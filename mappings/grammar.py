"""The words in which a translation is written down.

An operation is a generator function, a *flow*: it yields the steps it wants performed and returns
the answer. It does no I/O, has no clock and no randomness, so that it can be read like prose,
tested without a loop, and resumed by replaying it.

A refusal by the service is thrown into the flow at its ``yield``. A flow that can do something
about it catches it; one that cannot need not mention it. Undo runs after ``Refused`` and
``Unreachable``, never after ``Unknown``: what may have happened is found out, not undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mappings.unchanging import unchanging

if TYPE_CHECKING:
    from datetime import datetime

JSON = Any
"""Text, ``Decimal``, ``int``, ``bool``, ``None``, ``dict`` or ``list``; never a float."""


@unchanging(frozen=True, slots=True)
class Vocabulary:
    """The words that the documents made neutral (``[vocabulary]``), each side's own.

    The legacy labels are those of ``methodDisplay`` and of a summary's ``displayName`` and
    ``accountType``. An empty one is the wallet's word with a capital, for an account type the wallet's
    or the service's word as it is.
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


@unchanging(frozen=True, slots=True)
class LegacyOptions:
    """What an operator may choose about answers (``[legacy]``)."""

    government_ids: Literal["keep", "replace"] = "keep"
    holdup: Literal["remember", "refuse"] = "remember"
    primary_currency: Literal["both", "flat", "nested"] = "both"
    account_number_from_iban: Literal["auto", "always", "never"] = "auto"
    verify_before_start: Literal["warn", "refuse", "off"] = "warn"
    send_memo: bool = True


# What comes in and what goes out.


@unchanging(frozen=True, slots=True)
class Request:
    """A legacy request whose path, key and limit have been checked.

    Ids and words are in the current interface's spelling; ``body`` has passed the operation's
    ``takes`` shape, and ``problems`` are what had to be taken out of it: nothing is written
    while there are any. ``query`` holds no empty parameter. ``seed`` is the request's alone, for
    ids that are made here; ``keys`` are the caller's own, so that no answer shows them. ``imported``
    are the ids that its client knows by another name, current id to that name, where that was
    imported: before it was, the same request named the same objects otherwise.
    """

    now: datetime
    seed: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: JSON = None
    manners: LegacyOptions = LegacyOptions()
    problems: tuple[Problem, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)
    imported: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, found: Iterable[Problem]) -> None:
        """Raises Invalid with all that is wrong, of the shape and of what a flow found.

        What is wrong with a field in more than one way is told once, by the first.
        """
        told = {problem.field for problem in self.problems if problem.field}
        others = ProblemList()
        for one in found:
            if not (told and told.intersection(_places(one.field))):
                others.add(one)
        if self.problems or others:
            raise Invalid(*self.problems, *others, more=others.more)


def _places(field: str | None) -> list[str]:
    """A field, and every field that it stands inside of: ``payments[3].memo``, ``payments[3]``..."""
    if field is None:
        return []
    return [field, *(field[: found.start()] for found in re.finditer(r"[.\[]", field))]


@unchanging(frozen=True, slots=True)
class Answer:
    """What a legacy client gets with status 200, after ``"ok": true``.

    ``notices`` are lines for the operator's log: they hold no personal data.
    """

    body: Mapping[str, JSON]
    notices: tuple[str, ...] = ()


# The steps of a flow.


@unchanging(frozen=True, slots=True)
class Call:
    """One request of the current interface; yields the body of its 2xx answer.

    ``path`` is below ``/v1``. ``sent_as`` names, for each field of ``body`` (``address.city``),
    the field that the legacy client sent it in; a refusal is told with those names.

    ``witness`` makes it a call of an *inferred operation*, one that the document does not list:
    NoSuchOperation is thrown if the service lacks it, which is only believed of two refusals, each
    followed by a read that shows the batch, and the payment, that it names; for one that names none,
    as a list does, by any documented read that is answered. A read that ``keeps`` its answer may be answered
    with one so many seconds old, unless something was changed through the gateway since.

    ``settle`` reads what became of a write that was sent and not answered, and looks for what
    agrees with ``known_by``, where that is less than the whole body. One that is ``prompt``
    is only sent while its client waits, never by whoever finishes later what was cut off. Without a
    cleanup the flow goes on, whatever became of it: it is refused if nothing proves that it happened.
    ``in_doubt`` is recorded as soon as the outcome is unknown, if the ledger still has what it is to find.
    """

    method: str
    path: str
    body: JSON = None
    query: Mapping[str, str] = field(default_factory=dict)
    sent_as: Mapping[str, str] = field(default_factory=dict)
    witness: tuple[str, ...] | None = None
    keeps: float = 0
    settle: Settle | None = field(default=None, compare=False, repr=False)
    prompt: bool = False
    is_cleanup: bool = False
    known_by: JSON = field(default=None, compare=False, repr=False)
    in_doubt: Record | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.reads and self.settle is None:
            raise TypeError("a write says how it is found out whether it happened")

    @property
    def reads(self) -> bool:
        return self.method == "GET"


SIDE_BY_SIDE = 8
"""How many reads of one request are under way at a time."""


@unchanging(frozen=True, slots=True)
class Parallel:
    """Independent reads, made side by side within bounds; yields what each gave, in order.

    What failed stands in its place as the exception that a ``Call`` alone would have thrown.
    """

    calls: Sequence[Call]


@unchanging(frozen=True, slots=True)
class Find:
    """A question over a list; yields ``Found``. How it is answered is the player's choice.

    ``ask`` is the query with which the service answers it alone, in one call; None where it
    cannot. Otherwise all that ``narrow`` lets through is read, what is ``hidden`` is left out,
    what ``where`` agrees to is kept and put in ``order``, ties by id; without one it stays in that of the
    service. ``gone`` are rows which the
    client must not see and which are remembered, by their ids, and ``sorting`` is what the service
    is asked for while all is read. It is ``indexed`` where its rows tell when they were last changed,
    and the service lists what was changed since. It is ``by_id``
    where the order is that of the ids as clients know them; ``order`` has those of the service.
    """

    path: str
    rows: str
    page: int
    page_size: int
    hidden: Callable[[JSON], bool]
    where: Callable[[JSON], bool]
    order: Callable[[JSON], Any] | None
    descending: bool
    ask: Mapping[str, str] | None
    narrow: Mapping[str, str]
    gone: frozenset[str] = frozenset()
    indexed: bool = False
    by_id: bool = False
    sorting: Mapping[str, str] = field(
        default_factory=lambda: {"orderBy": "createdAt", "sortBy": "asc"}
    )


@unchanging(frozen=True, slots=True)
class Found:
    """One page of rows, and how many pages and rows there are in all."""

    rows: Sequence[JSON]
    pages: int
    records: int


@unchanging(frozen=True, slots=True)
class Recall:
    """What the ledger remembers of an object of the caller's merchant and environment.

    Yields its facts, an empty mapping where there are none; without ``id``, the facts of every
    object of that kind that has any, by id, or of those among ``ids``. Of "abandoned" it yields the
    aliases of abandoned batches alone, and of "legacy id" what clients call those among ``ids``.
    """

    kind: str
    id: str | None = None
    ids: tuple[str, ...] | None = None


@unchanging(frozen=True, slots=True)
class Record:
    """Has the ledger remember facts of an object; a fact of None is forgotten. Yields None.

    Where the object's facts are not those that it is to ``find``, nothing is remembered and
    Conflict is thrown: of two that change an object at once, one wins. What is recorded ``also``
    is remembered with it, or not at all; where that is very much, it has nothing to find.
    """

    kind: str
    id: str
    facts: Mapping[str, JSON]
    find: Mapping[str, JSON] = field(default_factory=dict)
    also: Sequence[Record] = ()

    @property
    def all(self) -> Iterator[Record]:
        """It, and what is recorded with it."""
        yield self
        for one in self.also:
            yield from one.all


@unchanging(frozen=True, slots=True)
class Await:
    """Waits for what another request is doing to an object; yields its facts once that is done.

    ``until`` says of the facts whether it is. Where it is not within the time that a call of the
    service may take, Conflict is thrown.
    """

    kind: str
    id: str
    until: Callable[[Mapping[str, JSON]], bool]


Step = Call | Parallel | Find | Recall | Record | Await
Flow = Generator[Step, Any, Answer]


# A write whose outcome is unknown.


@unchanging(frozen=True, slots=True)
class InDoubtWrite:
    """A write that was sent and not answered, for those who find out what became of it.

    ``since`` is the earliest moment, by the service's clock, at which it may have been executed.
    ``claimed`` are the ids of objects that other writes are known to have made, ``alike`` how many
    writes of unknown outcome ask for the same, this one included. ``told`` is the id of what it
    made, where an operator has looked it up, ``happened`` that one found out that it was executed.
    """

    since: datetime
    claimed: frozenset[str] = frozenset()
    alike: int = 1
    told: str | None = None
    happened: bool = False


@unchanging(frozen=True, slots=True)
class Confirmed:
    """It was executed; ``body`` is what the service would have answered, ``made`` what it made."""

    body: JSON = field(default_factory=dict)
    made: str | None = None


@unchanging(frozen=True, slots=True)
class Absent:
    """Nothing of it can be seen. Only believed once it can no longer be executed, and twice."""


@unchanging(frozen=True, slots=True)
class MayExist(Absent):
    """A batch that the service shows to nobody: it pays nobody before its start, and may be made anew."""


@unchanging(frozen=True, slots=True)
class Inconclusive:
    """``why`` is for the operator, who has to find out in another way."""

    why: str


@unchanging(frozen=True, slots=True)
class Unreadable(Inconclusive):
    """The service could not be read: another time it may be."""


Verdict = Confirmed | Absent | Inconclusive
Settle = Callable[[InDoubtWrite], Generator[Step, Any, Verdict]]
"""Reads of the service, and what they say; it may yield whatever a flow may, but writes."""


# The four kinds of error, and one way out (errors.py).


@unchanging(frozen=True, slots=True)
class Problem:
    """One entry of ``errors``; ``code`` is one of the legacy document's, section 7."""

    code: str
    message: str
    field: str | None = None


MAX_ERRORS = 100
"""How many errors are reported for one body; see the contract of the translation, section 2."""


class ProblemList:
    """The first ``MAX_ERRORS`` problems, each once; the rest is counted and not kept.

    A short body can have a million: kept, they take a hundred times its size.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Problem] = {}
        self.more = 0

    def add(self, problem: Problem) -> None:
        key = problem.code, problem.field or problem.message
        if key in self._first:
            return
        if len(self._first) < MAX_ERRORS:
            self._first[key] = problem
        else:
            self.more += 1

    def __bool__(self) -> bool:
        return bool(self._first)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._first.values())


class Failure(Exception):
    """A step that did not give its answer."""

    error_type: ClassVar[str] = "failed"
    """Its name in logs, metrics and traces."""


class Invalid(Failure):
    """The client's request cannot be carried out as it stands.

    ``more`` problems were found besides, and are only counted.
    """

    error_type = "invalid_request"

    def __init__(self, *problems: Problem, more: int = 0) -> None:
        super().__init__(", ".join(problem.code for problem in problems))
        self.problems = problems
        self.more = more


class Refused(Failure):
    """The service said no; nothing was executed."""

    error_type = "refused_by_service"

    def __init__(
        self,
        status: int,
        problems: Sequence[Problem] = (),
        *,
        sent_as: Mapping[str, str] | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(f"{status} " + ", ".join(problem.code for problem in problems))
        self.status = status
        self.problems = tuple(problems)
        self.sent_as = sent_as or {}
        self.retry_after = retry_after

    def names(self, code: str, field: str) -> bool:
        """Whether the service complained of this field (its own name for it) with this code."""
        return any(
            problem.code == code and (problem.field or "").rpartition(".")[2] == field
            for problem in self.problems
        )


class Conflict(Failure):
    """The ledger has other facts of an object than were to be found."""

    error_type = "conflict"


class NoSuchOperation(Failure):
    """The service does not have an inferred operation; there is another way."""

    error_type = "no_such_operation"


class Unreachable(Failure):
    """The request never left, or was a read that got no answer: nothing was changed by it.

    Asking again makes sense after ``retry_after`` seconds, where that is known.
    """

    error_type = "unreachable"

    def __init__(self, why: str = "", *, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class Halted(Unreachable):
    """It was kept from leaving here, on purpose; ``problem`` is what its client is told."""

    error_type = "blocked"

    def __init__(self, problem: Problem, *, retry_after: int | None = None) -> None:
        super().__init__(problem.message, retry_after=retry_after)
        self.problem = problem


class Unknown(Failure):
    """A write left, and no answer to it can be read: it may have happened.

    ``age`` is how many seconds ago it was sent; asking again makes sense after ``retry_after``.
    """

    error_type = "in_doubt"

    def __init__(self, why: str = "", *, age: float = 0, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.age = age
        self.retry_after = retry_after


# Operations.

Exactness = Literal["exact", "emulated", "inferred", "lossy"]


@unchanging(frozen=True, slots=True)
class Operation:
    """One operation of the legacy interface, and the flow that carries it out.

    ``path`` is below ``/v1``, ids as ``{name}``, words of the vocabulary as ``<name>``. ``takes`` is the shape of the body that clients
    send, ``query`` that of their parameters, ``gives`` that of the answer. ``because`` is the reason for its ``exactness``,
    ``keyless`` that it needs no API key, and ``rests_on`` what it presumes that the documents do not show.
    """

    method: str
    path: str
    flow: Callable[[Request], Flow]
    section: str
    exactness: Exactness
    because: str
    gives: Any
    takes: Any = None
    query: Any = None
    keyless: bool = False
    rests_on: str = ""
    may_write: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes anything; ``may_write`` says so of a read that makes a draft real."""
        return self.may_write or self.method != "GET"

    @property
    def name(self) -> str:
        return self.flow.__name__
