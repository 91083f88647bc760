"""`serve --demo`: the gateway against its simulator, with a demo key, on loopback only."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from gateway.auth.key_import import import_only_key
from gateway.auth.signing import Credentials
from gateway.config.sections import Environment
from gateway.config.settings import Environments, Settings, State, Words
from gateway.simulator import (
    DEMO_CREDENTIALS,
    WALLET_FUNDS,
    LegacyVocabulary,
    Service,
    Vocabulary,
    start_simulator,
)
from gateway.storage import Tenant
from mappings.vocabulary import map_legacy_words

if TYPE_CHECKING:
    from gateway.server.app import RunningGateway

DEMO_API_KEY = "demo-api-key"
LOOPBACK = "127.0.0.1"

DEMO_RECIPIENT = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
    "address": {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"},
    "payout": {
        "primary": {"method": "bank", "currency": "USD"},
        "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
    },
}


@asynccontextmanager
async def open_demo_settings(settings: Settings) -> AsyncIterator[Settings]:
    """Starts the simulator and yields demo settings; only the ports are taken from ``settings``."""
    words = build_simulator_vocabulary(settings.vocabulary)
    service = Service(vocabulary=words, wallet_balance=WALLET_FUNDS)
    simulator = await start_simulator(service=service)
    # Always on loopback, because everybody knows the API key of the demo.
    server = {"host": LOOPBACK, "admin_host": LOOPBACK, "workers": 1}
    changes: dict[str, Any] = {"server": settings.server.model_copy(update=server)}
    changes["environments"] = Environments(sandbox=Environment(base_url=simulator.url))
    credentials = Credentials(DEMO_CREDENTIALS.access_key, DEMO_CREDENTIALS.secret_key)
    tenant = Tenant(DEMO_CREDENTIALS.merchant, DEMO_CREDENTIALS.environment)
    try:
        async with open_temporary_state(tenant, credentials, DEMO_API_KEY, "demo") as state:
            yield settings.model_copy(update={**changes, "state": state})
    finally:
        await simulator.stop()


@asynccontextmanager
async def open_temporary_state(
    tenant: Tenant, credentials: Credentials, api_key: str, name: str
) -> AsyncIterator[State]:
    """Opens a state with one key, which is removed when this process ends, even if it is killed."""
    folder = tempfile.mkdtemp(prefix="payout-gateway-")
    # A process of its own, which waits for the end of its input, and that is the end of this one.
    remove = ["sh", "-c", 'cat; rm -rf "$0"', folder]
    with subprocess.Popen(remove, stdin=subprocess.PIPE, start_new_session=True):  # noqa: ASYNC220, S603
        key_file = Path(folder, "gateway.key")
        state = State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=key_file)
        await import_only_key(state, tenant, credentials, api_key, name)
        yield state


def build_simulator_vocabulary(vocabulary: Words) -> Vocabulary:
    """Converts the configured vocabulary of both interfaces to the simulator's."""
    legacy = LegacyVocabulary(**map_legacy_words(vocabulary.build_vocabulary()))
    return Vocabulary(**vocabulary.current.model_dump(), legacy=legacy)


def format_demo_instructions(running: RunningGateway) -> str:
    """Formats the text for the terminal: a notice that this is a demo, and commands to try."""
    curl_command = f'curl -s -H "X-API-Key: {DEMO_API_KEY}"'
    return f"""
This is a DEMO: the gateway in front of a built-in simulator, on loopback, with a demo key.
No real service is called. All data is deleted when it ends (Ctrl-C).

Create a recipient with a bank account:

  {curl_command} -H "Content-Type: application/json" \\
    {running.url}/v1/recipients -d '{json.dumps(DEMO_RECIPIENT)}'

List the recipients, and read the first one's payout method:

  {curl_command} "{running.url}/v1/recipients?search=ada"

  ID=$({curl_command} {running.url}/v1/recipients | grep -o '"id":"R-[^"]*"' | head -1 | cut -d'"' -f4)
  {curl_command} "{running.url}/v1/recipients/$ID/payout-methods"

Open the operator console: {running.admin_url}/

payout-gateway accepts connections on {running.url}, admin on {running.admin_url}"""


# Sample traffic

PAUSE_SECONDS = 0.7
"""Average pause between two requests: about half of the default rate limit."""

MAX_RECIPIENTS = 200
"""From then on no more are created, because the simulator keeps them in memory."""


@asynccontextmanager
async def send_sample_traffic(url: str) -> AsyncIterator[None]:
    """Sends legacy requests to the gateway at ``url`` in the background."""
    task = asyncio.create_task(_send_requests(f"{url}/v1"))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _send_requests(url: str) -> None:
    """Sends rounds of mostly reads, one payout, and now and then a client's mistake."""
    recipients: list[str] = []
    async with aiohttp.ClientSession(headers={"X-API-Key": DEMO_API_KEY}) as session:

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
