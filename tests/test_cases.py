"""The golden cases: what a legacy client asks, the calls that it becomes, what the client is told.

Each file in ``cases/`` is played through the whole house, HTTP in and HTTP out, in front of a
service that answers as the case says. The signature is checked elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.storage import Ledger, Tenant, open_store
from mappings import OPERATIONS
from mappings.drafts import format_timestamp
from tests.house import ENVIRONMENT, KEY, open_house

CASES = Path(__file__).parent / "cases"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
OWNER = Tenant(KEY["merchant"], ENVIRONMENT)


def _id(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


FILES = sorted(CASES.glob("*/*.json"))


class Service:
    """Answers the calls of a case, in order; calls that are made together in any order."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self.expected = [dict(call) for call in calls]
        self.surprises: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.Response:
        call = {"method": request.method, "path": request.raw_path.removeprefix("/v1")}
        if data := await request.read():
            call["body"] = json.loads(data)
        for place, expected in enumerate(self.expected):
            if expected["request"] == call:
                del self.expected[place]
                answer = expected["answer"]
                body = (
                    answer["body"]
                    if isinstance(answer["body"], str)
                    else json.dumps(answer["body"])
                )
                return web.Response(
                    status=answer.get("status", 200),
                    text=body,
                    content_type="application/json",
                    headers=answer.get("headers"),
                )
            if not expected.get("together"):
                break
        self.surprises.append(f"{json.dumps(call)} came, expected: {json.dumps(self.expected[:1])}")
        return web.json_response({"ok": False, "errors": []}, status=500)


@asynccontextmanager
async def _serving(service: Service) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(service.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("file", FILES, ids=_id)
async def test_case(file: Path, tmp_path: Path) -> None:
    case = json.loads(file.read_text("utf-8"))
    service, began = Service(case.get("calls", [])), format_timestamp(datetime.now(UTC))
    settings = case.get("settings", {})
    # Else it may look for abandoned batches just then, which no transcript has.
    settings["upstream"] = {"abandoned_check_seconds": 0, **settings.get("upstream", {})}
    async with _serving(service) as url, open_house(tmp_path, url, **settings) as house:
        async with open_store(house.settings.state) as store:
            await _remember(Ledger(store), case.get("remembered", {}))
            asked = case["request"]
            got = await house.ask(asked["method"], "/v1" + asked["path"], asked.get("body"))
            after = {
                kind: await Ledger(store).recall_all(OWNER, kind)
                for kind in {"recipient", *case.get("remembered", {}), *case.get("remembers", {})}
            }
    assert not service.surprises
    assert got.body == case["answer"]["body"]
    assert list(got.body) == list(case["answer"]["body"]), "the order of fields"
    assert got.status == case["answer"].get("status", 200)
    assert not service.expected, "calls that were not made"
    expected = case.get("remembers", case.get("remembered", {}))
    assert _with_now(after, began) == {**{kind: {} for kind in after}, **expected}


def _with_now(facts: Any, began: str) -> Any:
    """With "<now>" for the times that the request made."""
    if isinstance(facts, dict):
        return {name: _with_now(fact, began) for name, fact in facts.items()}
    if isinstance(facts, list):
        return [_with_now(one, began) for one in facts]
    is_now = isinstance(facts, str) and TIME.fullmatch(facts) and facts >= began
    return "<now>" if is_now else facts


async def _remember(ledger: Ledger, remembered: dict[str, Any]) -> None:
    for kind, objects in remembered.items():
        for id_, facts in objects.items():
            await ledger.record(OWNER, kind, id_, facts)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_has_a_success_and_a_refusal(operation: Any) -> None:
    room = operation.flow.__module__.rpartition(".")[2]
    answers = [
        json.loads(file.read_text("utf-8"))["answer"]
        for file in CASES.glob(f"{room}/{operation.name}--*.json")
    ]
    assert any(answer.get("status", 200) == 200 for answer in answers)
    assert any(answer.get("status", 200) != 200 for answer in answers)
