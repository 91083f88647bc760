"""Sample requests for the demo, so that the console has something to show."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from gateway.server.demo import DEMO_RECIPIENT

PAUSE_SECONDS = 0.7
"""Average pause between two requests: about half of the default rate limit."""

MAX_RECIPIENTS = 200
"""From then on no more are created, because the simulator keeps them in memory."""


@asynccontextmanager
async def send_sample_traffic(url: str, api_key: str) -> AsyncIterator[None]:
    """Sends legacy requests to the gateway at ``url`` in the background."""
    task = asyncio.create_task(_send_requests(f"{url}/v1", api_key))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _send_requests(url: str, api_key: str) -> None:
    """Sends rounds of mostly reads, one payout, and now and then a client's mistake."""
    recipients: list[str] = []
    async with aiohttp.ClientSession(headers={"X-API-Key": api_key}) as session:

        async def send(method: str, path: str, body: Any = None) -> dict[str, Any]:
            """Returns the answer; empty if there is none, as while the gateway shuts down."""
            await asyncio.sleep(random.expovariate(1 / PAUSE_SECONDS))
            try:
                async with session.request(method, url + path, json=body) as response:
                    answer = await response.json()
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return {}
            return answer if isinstance(answer, dict) else {}

        for number in itertools.count():
            if len(recipients) < MAX_RECIPIENTS:
                body = DEMO_RECIPIENT | {"email": f"ada.{number}@example.com"}
                if recipient := (await send("POST", "/recipients", body)).get("recipient"):
                    recipients.append(recipient["id"])
            for path in ("/recipients?pageSize=10", "/profile/balances", "/batches?pageSize=10"):
                await send("GET", path)
            for recipient in recipients[-1:]:
                await send("GET", f"/recipients/{recipient}/payout-methods")
            payments = [
                {"recipient": {"id": recipient}, "sourceAmount": f"{1 + number % 90}.50"}
                for recipient in recipients[-3:]
            ]
            new_batch = {"sourceCurrency": "USD", "payments": payments}
            if batch := (await send("POST", "/batches", new_batch)).get("batch"):
                await send("POST", f"/batches/{batch['id']}/generate-quote")
                await send("POST", f"/batches/{batch['id']}/start-processing")
                await send("GET", f"/batches/{batch['id']}/summary")
            if number % 4 == 3:
                await send("GET", "/recipients/R-0000000000000000")
                await send("POST", "/recipients", {"type": "individual", "firstName": "Nobody"})
