"""Transcripts of ``cases/``: a legacy request, the calls that it becomes, and the legacy response.

A case may contain ``settings``, the object states before it (``remembered``) and after it (``remembers``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.glob("*/*.json"))
FILES_BY_OPERATION: dict[str, list[Path]] = {}
for _file in FILES:
    FILES_BY_OPERATION.setdefault(_file.stem.partition("--")[0], []).append(_file)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


@dataclass
class ScriptedService:
    """Answers the calls of a case in order; calls marked ``together`` in any order."""

    expected: list[dict[str, Any]]
    unexpected_calls: list[str] = field(default_factory=list)

    def respond(
        self, method: str, target: str, data: bytes | None
    ) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers for a call."""
        call: dict[str, Any] = {"method": method, "path": target.removeprefix("/v1")}
        if data:
            call["body"] = json.loads(data)
        for position, expected in enumerate(self.expected):
            if expected["request"] == call:
                del self.expected[position]
                response = expected["answer"]
                body = response["body"]
                text = body if isinstance(body, str) else json.dumps(body)
                return response.get("status", 200), text, response.get("headers") or {}
            if not expected.get("together"):
                break
        self.unexpected_calls.append(
            f"{json.dumps(call)} came, expected: {json.dumps(self.expected[:1])}"
        )
        return 500, '{"ok": false, "errors": []}', {}


@dataclass
class Transcript:
    """One case, as it runs. A call ``{"again": 1}`` is equal to the first, with its answer."""

    case: dict[str, Any]
    service: ScriptedService
    started_at: str

    @classmethod
    def load(cls, file: Path) -> Transcript:
        case = json.loads(file.read_text("utf-8"))
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        calls = case.get("calls", [])
        expected = [calls[call["again"] - 1] if "again" in call else call for call in calls]
        return cls(case, ScriptedService(expected), now)

    @property
    def settings(self) -> dict[str, Any]:
        settings = self.case.get("settings", {})
        # Otherwise the gateway may look for superseded batches meanwhile, which no case expects.
        upstream = {"abandoned_check_seconds": 0, **settings.get("upstream", {})}
        return {**settings, "upstream": upstream}

    @property
    def request(self) -> tuple[str, str, Any]:
        """Method, target and body."""
        request = self.case["request"]
        return request["method"], "/v1" + request["path"], request.get("body")

    @property
    def objects_before(self) -> dict[str, Any]:
        objects: dict[str, Any] = self.case.get("remembered", {})
        return objects

    @property
    def kinds(self) -> set[str]:
        """Kinds of objects to compare afterwards."""
        return {"recipient", *self.objects_before, *self.case.get("remembers", {})}

    def check(self, status: int, body: Any, objects: dict[str, Any]) -> None:
        assert not self.service.unexpected_calls
        expected_response = self.case["answer"]
        assert body == expected_response["body"]
        assert list(body) == list(expected_response["body"]), "the order of fields"
        assert status == expected_response.get("status", 200)
        assert not self.service.expected, "calls that were not made"
        expected_objects = self.case.get("remembers", self.objects_before)
        assert self._replace_new_times(objects) == {
            **{kind: {} for kind in objects},
            **expected_objects,
        }

    def _replace_new_times(self, value: Any) -> Any:
        """Puts "<now>" in place of times that the request set."""
        if isinstance(value, dict):
            return {name: self._replace_new_times(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._replace_new_times(element) for element in value]
        is_new = isinstance(value, str) and TIME.fullmatch(value) and value >= self.started_at
        return "<now>" if is_new else value
