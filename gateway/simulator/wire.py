"""JSON as it travels: numbers exact, text as UTF-8."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import simplejson

JsonObject = dict[str, Any]


class NotJson(ValueError):
    pass


def read_json(data: bytes, parse_float: Callable[[str], Decimal] = Decimal) -> Any:
    """Numbers with a point or exponent become `Decimal`, never float.

    Raises NotJson, also for text that could not be written again: a lone surrogate.
    """
    try:
        value = simplejson.loads(data.decode(), parse_float=parse_float)
        write_json(value)
    except (ValueError, RecursionError) as reason:
        raise NotJson from reason
    return value


def write_json(value: Any) -> bytes:
    text = simplejson.dumps(value, use_decimal=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode()
