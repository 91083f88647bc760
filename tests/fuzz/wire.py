"""The JSON decoder either raises its one error or keeps the value exactly."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from gateway.payloads import json_codec


def check(data: bytes) -> None:
    try:
        value = json_codec.loads(data)
    except json_codec.JsonError:
        return
    _check_is_json(value)
    encoded = json_codec.dumps(value)
    decoded_again = json_codec.loads(encoded)
    assert decoded_again == value
    assert json_codec.dumps(decoded_again) == encoded, "a second writing differs"
    # Another decoder gets the same value, except for numbers.
    reference_value = json.loads(
        data.decode("utf-8-sig"), parse_float=Decimal, parse_constant=_refuse
    )
    assert _are_equal(value, reference_value)


def _check_is_json(value: Any) -> None:
    assert value is None or isinstance(value, str | int | Decimal | dict | list), type(value)
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        _check_is_json(item)


def _are_equal(value: Any, reference_value: Any) -> bool:
    if isinstance(value, dict):
        return list(value) == list(reference_value) and all(
            _are_equal(value[name], reference_value[name]) for name in value
        )
    if isinstance(value, list):
        return len(value) == len(reference_value) and all(map(_are_equal, value, reference_value))
    return bool(value == reference_value) and isinstance(value, bool) == isinstance(
        reference_value, bool
    )


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} was read")
