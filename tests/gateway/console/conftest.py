"""A console and an HTTP client for it, one of each per module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.console import ConsoleClient, ConsoleUnderTest, open_console, open_console_client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleUnderTest]:
    async with open_console(tmp_path_factory.mktemp("console")) as running_console:
        yield running_console


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def console_client(console: ConsoleUnderTest) -> AsyncIterator[ConsoleClient]:
    async with open_console_client(console.url) as client:
        yield client
