"""Decodes a JSON text that is in memory as a whole."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from operator import is_
from typing import Any, Union

import msgspec
import simplejson

from mappings.exact_json import MAX_DIGITS, encode_plain_value, loads_trusted, parse_number

MAX_DEPTH = 64
"""Maximum nesting of objects and arrays; the documents' deepest body has five levels."""

_SHALLOW_DEPTH = 8
"""Nesting of nearly all texts."""

WHITESPACE = b" \t\n\r"


def decode_if_lossless(data: bytes, max_depth: int = MAX_DEPTH) -> tuple[Any, bytes] | None:
    """Decodes a text whose value would be encoded to the same text.

    Returns the value and its compact text; None if the text is invalid, or may be.
    """
    try:
        try:
            value = _SHALLOW_DECODER.decode(data)
        except msgspec.ValidationError:
            value = loads_trusted(data)
            if _is_nested_deeper_than(value, max_depth):
                return None
        written = encode_plain_value(value)
    except (ValueError, ArithmeticError, RecursionError):  # a DecodeError is a ValueError, too
        return None
    # Duplicate keys and every other loss make the encoded text shorter, and nothing makes it
    # longer. So removing whitespace inside of strings too cannot hide a difference.
    if written != data and written.translate(None, WHITESPACE) != data.translate(None, WHITESPACE):
        return None
    return value, written


def decode_strictly(data: bytes, max_depth: int = MAX_DEPTH) -> tuple[str, tuple[Any, bytes]]:
    """Decodes a text that ``decode_if_lossless`` does not.

    Returns the reason for a refusal, or "" and the value with its compact text.
    """
    reason, value = _decode_strictly_with_refusal_reason(data)
    if not reason and _is_nested_deeper_than(value, max_depth):
        reason = f"nested deeper than {MAX_DEPTH}"
    return reason, (value, b"" if reason else encode_plain_value(value))


def _decode_strictly_with_refusal_reason(data: bytes) -> tuple[str, Any]:
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        if text.startswith(("\ufeff", "\xef\xbb\xbf")):  # simplejson would skip a second one too
            return "not JSON: line 1 column 1", None
        value = _STRICT_DECODER.decode(text)
        # simplejson accepts half of a surrogate pair, which cannot be encoded as UTF-8 again.
        if b"\\ud" in data or b"\\uD" in data:
            encode_plain_value(value)
    except UnicodeDecodeError:
        return "not UTF-8", None
    except UnicodeEncodeError:
        return "half of a surrogate pair", None
    except simplejson.JSONDecodeError as error:
        return f"not JSON: line {error.lineno} column {error.colno}", None
    except RecursionError:
        return f"nested deeper than {MAX_DEPTH}", None
    except (ValueError, ArithmeticError):  # from ``parse_number`` and from ``int``
        return f"a number of more than {MAX_DIGITS} digits", None
    except _DuplicateKeyError as error:
        # Shortened, because the key is the client's and may be as long as the body.
        return f"the key {error.key[:60]!r} twice in one object", None
    return "", value


# Values, level by level, with functions that run in C for all items at once

LISTS = {list, tuple}


def iterate_dicts(level: Sequence[Any]) -> Iterator[dict[str, Any]]:
    return compress(level, map(is_, map(type, level), repeat(dict)))


def list_nested_items(level: Sequence[Any]) -> list[Any]:
    """Lists what the dicts and lists of a level contain."""
    lists = compress(level, map(LISTS.__contains__, map(type, level)))
    fields = map(dict.values, iterate_dicts(level))
    return [*chain.from_iterable(fields), *chain.from_iterable(lists)]


def _is_nested_deeper_than(value: Any, max_depth: int) -> bool:
    """Whether a decoded value is nested deeper than ``max_depth``."""
    level = [value]
    for _ in range(max_depth):
        level = list_nested_items(level)
        if not level:
            return False
    return not _NESTS.isdisjoint(map(type, level))


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    # Parsers differ in which of two equal keys they keep, and a guess could pay the wrong amount.
    if len(fields) != len(pairs):
        seen_keys: set[str] = set()
        for key, _ in pairs:
            if key in seen_keys:
                raise _DuplicateKeyError(key)
            seen_keys.add(key)
    return fields


_STRICT_DECODER = simplejson.JSONDecoder(object_pairs_hook=_build_object, parse_float=parse_number)
_SHALLOW_TYPE: Any = None | bool | int | str
for _ in range(_SHALLOW_DEPTH):
    _SHALLOW_TYPE = Union[None, bool, int, str, dict[str, _SHALLOW_TYPE], list[_SHALLOW_TYPE]]  # noqa: UP007
_SHALLOW_DECODER = msgspec.json.Decoder(_SHALLOW_TYPE)
"""Proves a text shallow while it decodes: a search for its depth takes longer than its decoding.

It refuses numbers with a point or an exponent, for which there is no exact type.
"""
_NESTS = {dict, list}
