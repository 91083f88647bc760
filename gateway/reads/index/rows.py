"""An entry of the recipient cache: the fields of queries, and the compressed fields of answers.

Hundreds of thousands are in memory, so an entry is kept small: slots instead of a dict, common strings
interned, the rest compressed.
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
"""The zlib dictionary: text that most recipients share, the most frequent at the end."""

_WINDOW, _MEMORY = 12, 5
"""Smaller than zlib's defaults, whose set-up takes longer than compressing a short text."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Entry:
    """One recipient, with the mapping interface of ``recipient_rows.select_query_fields``.

    It is immutable; a later read replaces it. ``stamp`` is its update date in milliseconds since 1970;
    ``asked_at`` is the time of the request that read it, by this process's monotonic clock.
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
        # Recipient and address fields have different names, so one object can serve as both.
        return self if name == "address" else getattr(self, name, default)

    def __getitem__(self, name: str) -> JSON:
        return self.get(name)

    def whole(self) -> Row:
        """Return the fields that answers show, as the service returned them."""
        its: Row = json_codec.read(_unpacked(self.packed))
        return its

    def is_undated_after(self, other: Entry) -> bool:
        """Return whether it has changed since ``other`` was read, with the same update date."""
        return self.stamp == other.stamp and self.packed != other.packed

    def is_older_than(self, other: Entry) -> bool:
        """Return whether ``other`` is newer, by update date; if equal, by the time of the request."""
        return (self.stamp, self.asked_at) < (other.stamp, other.asked_at)


def parse_row_stamp(row: Row) -> int:
    """Return a row's update date in milliseconds since 1970; negative if it has none."""
    return (dates.parse_instant(row.get("updatedAt")) - _EPOCH) // _MILLISECOND


def format_stamp(stamp: int) -> str:
    """Format a stamp for the service's date filters."""
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
