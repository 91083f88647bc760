"""Converts JSON to values and back without loss: fields that are not translated stay byte-equal.

Strings are ``str``, integers ``int``; numbers with a point or an exponent are ``Decimal`` and are
encoded as they were read (``1.10``, ``1E5``). Floats are never used. The order of keys is kept.

msgspec decodes and encodes, because it is ten times as fast as any stricter library. It silently
keeps the last of two equal keys and reads ``-0`` as 0. So the decoded value is encoded again and
compared with the input (``text_decoding``). If they differ by more than whitespace, simplejson
decodes the text, and its result counts.

In a large text, long lists become lazy sequences (``decoding``): they are decoded and encoded
one slice at a time. The values and bytes are the same.
"""

from gateway.payloads.json_codec.decoding import (
    LARGE_BYTES,
    LONG_LISTS,
    JsonError,
    NotSliceableError,
    estimate_memory_bytes,
    loads,
    loads_in_slices,
)
from gateway.payloads.json_codec.encoding import (
    dumps,
    dumps_chunks,
    dumps_trusted,
    has_rows,
    iterdumps,
    iterdumps_canonical,
)
from gateway.payloads.json_codec.text_decoding import MAX_DEPTH
from mappings.exact_json import MAX_DIGITS, ExactDecimal, loads_trusted

__all__ = [
    "LARGE_BYTES",
    "LONG_LISTS",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "ExactDecimal",
    "JsonError",
    "NotSliceableError",
    "dumps",
    "dumps_chunks",
    "dumps_trusted",
    "estimate_memory_bytes",
    "has_rows",
    "iterdumps",
    "iterdumps_canonical",
    "loads",
    "loads_in_slices",
    "loads_trusted",
]
