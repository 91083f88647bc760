"""Sample requests for the demo, so that the console has something to show."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

PAUSE_SECONDS = 0.7
"""Average pause between two requests: about half of the default rate limit."""

MAX_RECIPIENTS = 200
"""From then on no more are created, because the simulator keeps them in memory."""

_NAMES = ("Ada Lovelace", "Grace Hopper", "Alan Turing", "Mary Somerville", "Emmy Noether")
_ADDRESS = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
_BANK_ACCOUNT = {"country": "US", "accountNum": "1234567", "routing": "021000021"}

Request = tuple[str, str, dict[str, Any] | None]


@asynccontextmanager
async def send_sample_traffic(url: str, api_key: str) -> AsyncIterator[None]:
    """Sends legacy requests to the gateway at ``url`` in the background."""
    task = asyncio.create_task(_send_requests(url, api_key))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _send_requests(url: str, api_key: str) -> None:
    recipients: list[str] = []
    async with aiohttp.ClientSession(headers={"X-API-Key": api_key}) as session:
        for number in itertools.count():
            for method, path, body in _iter_requests(number, recipients):
                await asyncio.sleep(random.expovariate(1 / PAUSE_SECONDS))
                answer = await _send_request(session, method, f"{url}/v1{path}", body)
                if path == "/recipients" and method == "POST" and "recipient" in answer:
                    recipients.append(answer["recipient"]["id"])
                if path == "/batches" and method == "POST" and "batch" in answer:
                    await _send_batch(session, f"{url}/v1/batches/{answer['batch']['id']}")


async def _send_request(
    session: aiohttp.ClientSession, method: str, url: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    """Returns the answer; empty if there is none, as while the gateway shuts down."""
    try:
        async with session.request(method, url, json=body) as response:
            answer = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


async def _send_batch(session: aiohttp.ClientSession, url: str) -> None:
    for method, path in (
        ("POST", "/generate-quote"),
        ("POST", "/start-processing"),
        ("GET", ""),
        ("GET", "/summary"),
    ):
        await _send_request(session, method, url + path, None)
        await asyncio.sleep(PAUSE_SECONDS)


def _iter_requests(number: int, recipients: list[str]) -> Iterator[Request]:
    """Yields one round: mostly reads, one payout, and now and then a client's mistake."""
    if len(recipients) < MAX_RECIPIENTS:
        first, last = _NAMES[number % len(_NAMES)].split()
        yield (
            "POST",
            "/recipients",
            {
                "type": "individual",
                "firstName": first,
                "lastName": last,
                "email": f"{first.lower()}.{number}@example.com",
                "address": _ADDRESS,
                "payout": {
                    "primary": {"method": "bank", "currency": "USD"},
                    "accounts": {"bank": _BANK_ACCOUNT},
                },
            },
        )
    yield "GET", "/recipients?pageSize=10", None
    yield "GET", "/profile/balances", None
    if recipients:
        yield "GET", f"/recipients/{recipients[-1]}", None
        yield "GET", f"/recipients/{recipients[-1]}/payout-methods", None
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": f"{1 + number % 90}.50"}
            for recipient in recipients[-3:]
        ]
        yield "POST", "/batches", {"sourceCurrency": "USD", "payments": payments}
    yield "GET", "/batches?pageSize=10", None
    if number % 4 == 3:
        yield "GET", "/recipients/R-0000000000000000", None
        yield "POST", "/recipients", {"type": "individual", "firstName": "Nobody"}
