"""The server of the admin port."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web
from structlog.testing import capture_logs

from gateway.server.admin_server import AdminServer


async def test_page_that_fails_is_logged_without_the_text_of_the_error() -> None:
    async def fail(_request: web.Request) -> web.Response:
        raise ValueError("what the client sent")

    application = web.Application()
    application.router.add_get("/", fail)
    with capture_logs() as entries:
        async with AdminServer(application) as admin_server, aiohttp.ClientSession() as client:
            server = await asyncio.get_running_loop().create_server(admin_server, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            async with client.get(f"http://127.0.0.1:{port}/") as response:
                assert response.status == 500
            server.close()
    (entry,) = entries
    assert (entry["event"], entry["log_level"]) == ("admin_page_failed", "error")
    assert entry["error.type"] == "ValueError"
    assert "fail" in entry["exception.stacktrace"]
    assert "client sent" not in str(entry)
