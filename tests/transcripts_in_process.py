"""Plays the transcripts of ``cases/`` without HTTP, in milliseconds each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.assembly import InProcessUpstream, assemble_parts
from tests.running_gateway import build_settings
from tests.state import TENANT, State, create_database, open_state
from tests.transcripts import FILES, Transcript, name_of

NEEDS_SERVER = frozenset({"batches/create_batch--answered-without-an-id"})
"""The flow raises an unforeseen exception, which only the server turns into a response."""

FILES_IN_PROCESS = [file for file in FILES if name_of(file) not in NEEDS_SERVER]


@asynccontextmanager
async def open_case_state(folder: Path) -> AsyncIterator[State]:
    """One database for all cases; each has a merchant of its own."""
    settings = build_settings(folder, "http://127.0.0.1:1")
    create_database(settings.state)
    async with open_state(settings) as state:
        yield state


async def check_case(file: Path, state: State, merchant: str) -> None:
    transcript, tenant = Transcript.load(file), TENANT._replace(merchant=merchant)
    settings = build_settings(Path(), "http://127.0.0.1:1", **transcript.settings)
    parts = assemble_parts(settings, state.store, InProcessUpstream(transcript.service.respond))
    await state.put_objects(transcript.objects_before, tenant)
    response = await parts.answer_request(settings, tenant, *transcript.request)
    objects = await state.list_objects(transcript.kinds, tenant)
    transcript.check(response.status, json.loads(response.body_bytes), objects)
