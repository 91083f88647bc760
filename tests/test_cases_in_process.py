"""Every transcript in process: the same comparison as ``test_cases``, without HTTP, in seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.state import State
from tests.transcripts import FILES, name_of
from tests.transcripts_in_process import (
    FILES_IN_PROCESS,
    NEEDS_SERVER,
    check_case,
    open_case_state,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def state(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[State]:
    async with open_case_state(tmp_path_factory.mktemp("state")) as state:
        yield state


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("file", FILES_IN_PROCESS, ids=name_of)
async def test_case(file: Path, state: State) -> None:
    await check_case(file, state, name_of(file))


def test_cases_that_need_the_server_exist() -> None:
    assert {name_of(file) for file in FILES} >= NEEDS_SERVER
