"""Requests to the admin pages of workers, which each serves on a Unix socket."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
from multidict import CIMultiDict
from yarl import URL

WORKER_PAGE_SECONDS = 60
"""Timeout for a page of a worker; generous, because no client request waits for it."""

HOP_BY_HOP_HEADERS = {
    *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    *("content-length", "date", "server"),  # set again for the forwarded message
}


class WorkerPage(NamedTuple):
    status: int
    headers: CIMultiDict[str]
    body: bytes


async def fetch_from_each_worker(
    workers: Sequence[Path],
    path: str,
    seconds: float,
    headers: Mapping[str, str] | None = None,
) -> list[WorkerPage | None]:
    """Fetches a page from each worker; None if one does not answer in time."""

    async def fetch_or_none(worker: Path) -> WorkerPage | None:
        try:
            async with asyncio.timeout(seconds):
                return await send_request_to_worker(worker, "GET", path, headers)
        except (aiohttp.ClientError, TimeoutError):
            return None

    return list(await asyncio.gather(*map(fetch_or_none, workers)))


async def send_request_to_worker(
    worker: Path,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> WorkerPage:
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(worker)),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=WORKER_PAGE_SECONDS),
            # The body is passed on as it is, with its Content-Encoding.
            auto_decompress=False,
        ) as session,
        session.request(
            method,
            # Encoded already: the worker must get the path unchanged.
            URL(f"http://worker{path}", encoded=True),
            headers=_remove_hop_by_hop_headers(headers or {}),
            data=body or None,
            allow_redirects=False,
        ) as response,
    ):
        return WorkerPage(
            response.status, _remove_hop_by_hop_headers(response.headers), await response.read()
        )


def _remove_hop_by_hop_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    end_to_end = [
        (name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP_HEADERS
    ]
    return CIMultiDict(end_to_end)
