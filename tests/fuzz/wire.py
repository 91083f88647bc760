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
    written = json_codec.dumps(value)
    again = json_codec.loads(written)
    assert again == value
    assert json_codec.dumps(again) == written, "a second writing differs"
    # Another decoder gets the same value, except for numbers.
    other = json.loads(data.decode("utf-8-sig"), parse_float=Decimal, parse_constant=_refuse)
    assert _are_equal(value, other)


def _check_is_json(value: Any) -> None:
    assert value is None or isinstance(value, str | int | Decimal | dict | list), type(value)
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        _check_is_json(one)


def _are_equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(
            _are_equal(ours[name], theirs[name]) for name in ours
        )
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(_are_equal, ours, theirs))
    return bool(ours == theirs) and isinstance(ours, bool) == isinstance(theirs, bool)


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} was read")
