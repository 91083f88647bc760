"""Every transcript in process: the same comparison as ``test_cases``, without HTTP, in seconds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.assembly import InProcessUpstream, assemble_parts, check_exact_json
from tests.running_gateway import build_settings
from tests.state import TENANT, State, create_database, open_state
from tests.transcripts import FILES, Transcript, name_of

NEEDS_SERVER = frozenset({"batches/create_batch--answered-without-an-id"})
"""The flow raises an unforeseen exception, which only the server turns into a response."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def state(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[State]:
    """One database for all cases; each has a tenant of its own."""
    settings = build_settings(tmp_path_factory.mktemp("state"), "http://127.0.0.1:1")
    create_database(settings.state)
    async with open_state(settings) as state:
        yield state


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "file", [file for file in FILES if name_of(file) not in NEEDS_SERVER], ids=name_of
)
async def test_case(file: Path, state: State) -> None:
    transcript, tenant = Transcript.load(file), TENANT._replace(merchant=name_of(file))
    settings = build_settings(Path(), "http://127.0.0.1:1", **transcript.settings)
    parts = assemble_parts(settings, state.store, InProcessUpstream(transcript.service.respond))
    await state.put_objects(transcript.objects_before, tenant)
    response = await parts.answer_request(settings, tenant, *transcript.request)
    check_exact_json(response)
    objects = await state.list_objects(transcript.kinds, tenant)
    transcript.check(response.status, json.loads(response.body_bytes), objects)


def test_cases_that_need_the_server_exist() -> None:
    assert {name_of(file) for file in FILES} >= NEEDS_SERVER
