"""A recipient as the index has it: what queries read of it at hand, what answers show of it packed.

Some hundred thousand of them are in memory, so each is as small as can be: no dict of its own, words that
many have in common only once, the rest compressed.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from gateway.payloads import json_codec
from gateway.reads.index.scan import Row
from mappings import dates, recipient_rows
from mappings.effects import JSON

_SHARED = ("type", "language", "status", "complianceStatus", "payoutMethod", "primaryCurrency")
_SHARED_OF_ADDRESS = ("city", "country", "region")
_OWN_WORDS = tuple(name for name in recipient_rows.QUERY_FIELDS if name not in _SHARED)

_FAMILIAR = (
    b'"firstName":null,"lastName":null,"dob":null,"passport":null,"ssn":null,"accountNum":null,'
    b'"iban":null,"swiftBic":null,"bankAddress":null,"bankCity":null,"bankPostalCode":null,'
    b'"bankRegionCode":null,"street2":null,"region":null,"postalCode":"","phone":"+","type":"wallet",'
    b'"emailAddress":"@example.com","governmentIds":[],{"country":"","type":"SSN","value":"****"}],'
    b'"accounts":[{"recipientAccountId":"A-","primary":true,"currency":"USD","type":"bank-transfer",'
    b'"country":"US","accountHolderName":"","accountNum":"****","bankId":"","branchId":"","bankName":""'
    b'}],"address":{"street1":"","street2":"","city":"","region":"","postalCode":"","country":"","phone"'
    b':""},"avatarUrl":"https://","language":"en","payoutMethod":"bank-transfer","primaryCurrency":"USD"'
    b',"createdAt":"20","updatedAt":"20","status":"active","complianceStatus":"verified","compliance":'
    b'{"status":"verified","checkedAt":"20"},{"id":"R-","referenceId":"","type":"individual","email":"'
)
"""What most of them have in common, so that not each has it packed: the last is the nearest."""

_WINDOW, _MEMORY = 12, 5
"""A recipient is a page of text at most: what zlib has by default takes longer to set up than to use."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Entry:
    """One recipient. Read with ``get``, it is what ``recipient_rows.told`` makes of a row.

    It is never changed: a later reading takes its place. ``stamp`` is its update date, in
    milliseconds since 1970, ``asked_at`` when the reading was sent, by this process's own clock.
    """

    __slots__ = (
        *recipient_rows.QUERY_FIELDS,
        *recipient_rows.QUERY_ADDRESS_FIELDS,
        "accounts",
        "asked_at",
        "packed",
        "stamp",
    )
    id: str
    status: JSON
    stamp: int
    asked_at: float
    packed: bytes

    def __init__(self, row: Row, asked_at: float) -> None:
        told = recipient_rows.select_query_fields(row)
        self._put(told, _SHARED, _OWN_WORDS)
        self._put(told["address"], _SHARED_OF_ADDRESS, ("postalCode",))
        its = told["accounts"]
        self.accounts = _accounts(its[0]["type"], its[0]["currency"]) if its else its
        self.stamp = parse_row_stamp(row)
        self.asked_at = asked_at
        self.packed = _packed(json_codec.dumps_trusted(recipient_rows.select_answer_fields(row)))

    def _put(self, told: Row, shared: Iterable[str], own: Iterable[str]) -> None:
        for name in shared:
            value = told[name]
            setattr(self, name, sys.intern(value) if type(value) is str else value)
        for name in own:
            setattr(self, name, told[name])

    def get(self, name: str, default: JSON = None) -> JSON:
        # No field of an address has the name of one of a recipient's: both are in one object.
        return self if name == "address" else getattr(self, name, default)

    def __getitem__(self, name: str) -> JSON:
        return self.get(name)

    def whole(self) -> Row:
        """What answers show of it, as the service gave it."""
        its: Row = json_codec.read(_unpacked(self.packed))
        return its

    def is_undated_after(self, other: Entry) -> bool:
        """Whether it was changed since the other was read, and the update date does not tell."""
        return self.stamp == other.stamp and self.packed != other.packed

    def is_older_than(self, other: Entry) -> bool:
        """Where two readings crossed, the later state is the one with the later update date."""
        return (self.stamp, self.asked_at) < (other.stamp, other.asked_at)


def parse_row_stamp(row: Row) -> int:
    """A row's update date; the beginning of time where it has none."""
    return (dates.parse_instant(row.get("updatedAt")) - _EPOCH) // _MILLISECOND


def format_stamp(stamp: int) -> str:
    """A stamp as the service takes dates."""
    moment = _EPOCH + stamp * _MILLISECOND
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(maxsize=4096)
def _accounts(type_: JSON, currency: JSON) -> tuple[Row, ...]:
    return ({"type": type_, "currency": currency, "primary": True},)


def _packed(text: bytes) -> bytes:
    packing = zlib.compressobj(1, zlib.DEFLATED, -_WINDOW, _MEMORY, zdict=_FAMILIAR)
    return packing.compress(text) + packing.flush()


def _unpacked(packed: bytes) -> bytes:
    return zlib.decompressobj(-_WINDOW, _FAMILIAR).decompress(packed)
