"""An entry of the recipient cache: the fields of queries, and the compressed fields of answers.

Hundreds of thousands are in memory, so an entry is kept small: slots instead of a dict, common
strings interned, the rest compressed.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from gateway.payloads import json_codec
from gateway.reads.recipient_cache.scan import Row
from mappings import dates
from mappings.effects import JSON
from mappings.objects import RECIPIENT, determine_account_type, find_primary_account

QUERY_FIELDS = (
    "id", "name", "email", "referenceId", "firstName", "lastName", "type", "language", "dob",
    "status", "complianceStatus", "payoutMethod", "primaryCurrency", "createdAt", "updatedAt",
)  # fmt: skip
QUERY_ADDRESS_FIELDS = ("city", "country", "region", "postalCode")
"""With the primary account, all fields that filters, sort keys and ``is_hidden`` read."""

ANSWER_FIELDS = RECIPIENT.current_fields_of_answer.union(
    ("accounts", "compliance", "complianceStatus", "governmentIds", "ssn", "status")
)
"""All fields that ``objects.build_legacy_recipient`` reads."""


def select_answer_fields(row: Row) -> dict[str, JSON]:
    """Selects the fields that answers are built from."""
    return {name: value for name, value in row.items() if name in ANSWER_FIELDS}


_INTERNED_FIELDS = frozenset(
    {"type", "language", "status", "complianceStatus", "payoutMethod", "primaryCurrency"}
    | {"city", "country", "region"}
)

_COMPRESSION_DICTIONARY = (
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

_WINDOW_BITS, _MEMORY_LEVEL = 12, 5
"""Smaller than zlib's defaults, whose set-up takes longer than compressing a short text."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class RecipientEntry:
    """One recipient, with the mapping interface of a row for the fields that queries read.

    It is immutable; a later read replaces it. ``stamp`` is its update date in milliseconds since
    1970.
    """

    __slots__ = (
        *QUERY_FIELDS,
        *QUERY_ADDRESS_FIELDS,
        "accounts",
        "packed",
        "stamp",
    )
    id: str
    status: JSON
    accounts: JSON
    stamp: int
    packed: bytes

    def __init__(self, row: Row) -> None:
        self._set_fields(row, QUERY_FIELDS)
        self._set_fields(row.get("address") or {}, QUERY_ADDRESS_FIELDS)
        # These differ: a missing list says nothing, an empty list means that there is no account.
        self.accounts = None if row.get("accounts") is None else ()
        if primary := find_primary_account(row):
            type_ = determine_account_type(primary)
            self.accounts = _build_primary_account(type_, primary.get("currency"))
        self.stamp = parse_row_stamp(row)
        # From the service's own values: an answer must be the same with and without the cache.
        self.packed = _compress(json_codec.dumps_trusted(select_answer_fields(row)))

    def _set_fields(self, fields: Row, names: Iterable[str]) -> None:
        for name in names:
            value: JSON = fields.get(name)
            if name in _INTERNED_FIELDS and type(value) is str:
                value = sys.intern(value)
            setattr(self, name, value)

    def get(self, name: str, default: JSON = None) -> JSON:
        # Recipient and address fields have different names, so one object can serve as both.
        return self if name == "address" else getattr(self, name, default)

    def __getitem__(self, name: str) -> JSON:
        return self.get(name)

    def unpack_answer_fields(self) -> Row:
        """Returns the fields that answers show, as the service returned them."""
        row: Row = json_codec.loads(_decompress(self.packed))
        return row

    def is_same(self, other: RecipientEntry) -> bool:
        return self.stamp == other.stamp and self.packed == other.packed

    def has_undated_change(self, other: RecipientEntry) -> bool:
        """Whether the recipient has changed since ``other`` was read, with the same update date."""
        return self.stamp == other.stamp and self.packed != other.packed


def parse_row_stamp(row: Row) -> int:
    """Returns a row's update date in milliseconds since 1970; negative if it has none."""
    return (dates.parse_instant_or_earliest(row.get("updatedAt")) - _EPOCH) // _MILLISECOND


def format_stamp_for_date_filter(stamp: int) -> str:
    """Formats a stamp for the service's date filters."""
    return dates.format_timestamp(_EPOCH + stamp * _MILLISECOND)


@lru_cache(maxsize=4096)
def _build_primary_account(type_: JSON, currency: JSON) -> tuple[Row, ...]:
    return ({"type": type_, "currency": currency, "primary": True},)


def _compress(text: bytes) -> bytes:
    compressor = zlib.compressobj(
        1, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL, zdict=_COMPRESSION_DICTIONARY
    )
    return compressor.compress(text) + compressor.flush()


def _decompress(packed: bytes) -> bytes:
    return zlib.decompressobj(-_WINDOW_BITS, _COMPRESSION_DICTIONARY).decompress(packed)
