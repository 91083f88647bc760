"""A console and an HTTP client for it, one of each per module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.console import Seen, Visitor, open_console, visiting


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seen]:
    async with open_console(tmp_path_factory.mktemp("console")) as seen:
        yield seen


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def visitor(seen: Seen) -> AsyncIterator[Visitor]:
    async with visiting(seen.url) as visitor:
        yield visitor
