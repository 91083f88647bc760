"""JSON codec with exact numbers, in UTF-8."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import simplejson

JsonObject = dict[str, Any]


def decode_json(data: bytes, parse_float: Callable[[str], Decimal] = Decimal) -> Any:
    """Decodes JSON; numbers with a point or exponent become `Decimal`, never float.

    Raises ValueError, or RecursionError for values that are nested too deeply.
    """
    value = simplejson.loads(data.decode(), parse_float=parse_float)
    # A lone surrogate decodes but cannot be encoded: refuse it before it is stored.
    encode_json(value)
    return value


def encode_json(value: Any) -> bytes:
    text = simplejson.dumps(value, use_decimal=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode()
