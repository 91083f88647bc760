"""The answer of one side, and its body decoded for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gateway.compare.pii import classify_text
from gateway.compare.strict_json import ABSENT, JSON, InvalidJson, loads_strict


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. ``headers`` have lower-case names; ``seconds`` lasts until the last byte."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Body:
    """A response body: its JSON value, or the bytes if they are not JSON."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def value(self) -> JSON:
        try:
            return loads_strict(self._data)
        except InvalidJson:
            return ABSENT

    @property
    def kind(self) -> str:
        if not self._data:
            return "no body"
        return "not JSON" if self.value is ABSENT else "JSON"

    @property
    def display_value(self) -> JSON:
        return self._data.decode(errors="replace") if self.kind == "not JSON" else self.value


def describe_error_codes(answer: Answer) -> str:
    """Returns the error codes of an error response, as a note; empty for a success.

    A code says more than the status. Messages are left out: they may quote personal data.
    """
    body = Body(answer.body).value
    errors = body.get("errors") if isinstance(body, dict) else None
    codes = (
        [error.get("code") for error in errors if isinstance(error, dict)]
        if isinstance(errors, list)
        else []
    )
    readable_codes = [
        code
        for code in codes
        if isinstance(code, str) and code and classify_text(("code",), code) == "clear"
    ]
    return (
        f"candidate says {', '.join(readable_codes[:3])}"
        if readable_codes and not answer.is_success
        else ""
    )
