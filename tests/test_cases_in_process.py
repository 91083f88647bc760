"""Every transcript in process: the same comparison as ``test_cases``, without HTTP, in seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.state import State
from tests.transcripts import FILES, FILES_BY_OPERATION, name_of
from tests.transcripts_in_process import NEEDS_SERVER, check_case, open_case_state


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def state(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[State]:
    async with open_case_state(tmp_path_factory.mktemp("state")) as state:
        yield state


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("operation", FILES_BY_OPERATION)
async def test_cases(operation: str, state: State) -> None:
    failures = []
    for file in FILES_BY_OPERATION[operation]:
        if name_of(file) not in NEEDS_SERVER:
            try:
                await check_case(file, state, name_of(file))
            except Exception as failure:  # noqa: BLE001 - of each case
                failure.add_note(name_of(file))
                failures.append(failure)
    if failures:
        raise ExceptionGroup("cases failed", failures)


def test_cases_that_need_the_server_exist() -> None:
    assert {name_of(file) for file in FILES} >= NEEDS_SERVER
