"""Transcripts over HTTP: a gateway in front of a service that answers as the case says.

``test_cases_in_process`` plays every transcript; of those that differ only in what is translated, HTTP
would show nothing more. The signature is checked elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mappings import OPERATIONS
from tests.running_gateway import open_gateway
from tests.state import open_state
from tests.transcripts import CASES, FILES, ScriptedService, Transcript, name_of
from tests.transcripts_in_process import NEEDS_SERVER


def _list_files() -> list[Path]:
    """One file for each operation, status and configuration, and those that only a server answers."""
    files: dict[Any, Path] = {}
    for file in FILES:
        transcript, operation = Transcript.load(file), file.stem.partition("--")[0]
        status = transcript.case["answer"].get("status", 200)
        is_needed = name_of(file) in NEEDS_SERVER
        files.setdefault((operation, status, str(transcript.settings), is_needed), file)
    return list(files.values())


@asynccontextmanager
async def _serve_scripted(service: ScriptedService) -> AsyncIterator[str]:
    async def handle_request(request: web.BaseRequest) -> web.Response:
        data = await request.read()
        status, text, headers = service.respond(request.method, request.raw_path, data)
        kind = "application/json"
        return web.Response(status=status, text=text, content_type=kind, headers=headers)

    runner = web.ServerRunner(web.Server(handle_request))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("file", _list_files(), ids=name_of)
async def test_case(file: Path, tmp_path: Path) -> None:
    transcript = Transcript.load(file)
    method, target, body = transcript.request
    async with (
        _serve_scripted(transcript.service) as url,
        open_gateway(tmp_path, url, **transcript.settings) as gateway,
        open_state(gateway.settings) as state,
    ):
        await state.put_objects(transcript.objects_before)
        response = await gateway.request(method, target, body)
        objects = await state.list_objects(transcript.kinds)
    transcript.check(response.status, response.body, objects)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_has_a_success_and_a_refusal(operation: Any) -> None:
    module_name = operation.flow.__module__.rpartition(".")[2]
    responses = [
        json.loads(file.read_text("utf-8"))["answer"]
        for file in CASES.glob(f"{module_name}/{operation.name}--*.json")
    ]
    assert any(response.get("status", 200) == 200 for response in responses)
    assert any(response.get("status", 200) != 200 for response in responses)
