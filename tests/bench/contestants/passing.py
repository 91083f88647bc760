"""``python -m tests.bench.contestants.passing PORT SERVICE_PORT``: passes requests on, and does nothing else.

This measures the cost of aiohttp: a request is read and sent, its response is read and returned.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web


async def serve(port: int, service: str) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def pass_on(request: web.BaseRequest) -> web.Response:
            data = await request.read() if request.body_exists else None
            headers = {"X-API-Key": request.headers["X-API-Key"]}
            async with session.request(
                request.method, service + request.raw_path, data=data, headers=headers
            ) as response:
                return web.Response(
                    status=response.status,
                    body=await response.read(),
                    headers={"Content-Type": "application/json"},
                )

        runner = web.ServerRunner(web.Server(pass_on, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), f"http://127.0.0.1:{sys.argv[2]}"))
