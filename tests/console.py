"""A gateway whose console has data: traffic, keys near their limit, writes in doubt, comparisons."""

from __future__ import annotations

import asyncio
import base64
import math
import random
import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from gateway.storage import Store, Tenant, open_store
from gateway.storage.difference_rows import (
    DifferenceExample,
    Tally,
    TallyKey,
    add_to_comparison_tallies,
)
from gateway.storage.request_counts import (
    BUCKET_BOUNDS_MS,
    DAY,
    MINUTE,
    CountKey,
    RequestCounts,
    add_request_counts,
)
from tests.operator_commands import disable_immediate_read
from tests.payouts import create_batch, create_recipient
from tests.running_gateway import KEY, GatewayUnderTest, import_api_keys, open_gateway
from tests.simulator import Fault, Service, ServiceOptions, Simulator, start_simulator

TOKEN = "a-token-of-some-length"

BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}

SHOP = Tenant("demo", "sandbox")
OTHER_MERCHANTS = ("northwind", "a-merchant-with-a-rather-long-name", "kiosk")

OPERATIONS = {
    "list_recipients": 60,
    "get_recipient": 45,
    "create_recipient": 12,
    "create_batch": 6,
    "get_batch_summary": 9,
    "start_processing": 3,
    "signed": 25,
    "": 1,
}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(slots=True)
class ConsoleUnderTest:
    """A gateway with its console, and its service."""

    gateway: GatewayUnderTest
    simulator: Simulator

    @property
    def url(self) -> str:
        return self.gateway.running.admin_url


@dataclass(slots=True)
class ConsoleClient:
    """A browser as the server sees it: credentials, and the Origin of forms."""

    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._request("GET", path, headers={"Accept": "text/html", **headers})

    async def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """Sends a form of the console."""
        sent_headers = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", **headers}
        sent_headers = {
            name.replace("_", "-"): value for name, value in sent_headers.items() if value
        }
        return await self._request("POST", path, headers=sent_headers, data=dict(fields))

    async def _request(self, method: str, path: str, **options: Any) -> Answer:
        async with self.session.request(
            method, self.url + path, allow_redirects=False, **options
        ) as response:
            text = (await response.text()).replace("<wbr>", "")  # shows nothing
            return Answer(response.status, response.headers, text)


@asynccontextmanager
async def open_console_client(url: str, token: str = "") -> AsyncIterator[ConsoleClient]:
    """``token`` is what the user of the browser has entered as password."""
    encoded = base64.b64encode(f"operator:{token}".encode()).decode()
    headers = {"Authorization": f"Basic {encoded}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield ConsoleClient(session, url)


@asynccontextmanager
async def open_console(
    folder: Path, **sections: Mapping[str, Any]
) -> AsyncIterator[ConsoleUnderTest]:
    """An unused gateway in front of a simulator without the optional endpoints."""
    simulator = await start_simulator(
        service=Service(seed=1, options=ServiceOptions(inferred=False)), legacy_port=0
    )
    environment = {"base_url": simulator.url, "legacy_base_url": simulator.legacy_url}
    all_sections = {"environments": {KEY["environment"]: environment}, **sections}
    try:
        async with open_gateway(folder, simulator.url, **all_sections) as gateway:
            yield ConsoleUnderTest(gateway, simulator)
    finally:
        await simulator.stop()


async def fill_history(console: ConsoleUnderTest, folder: Path) -> None:
    """Adds data for every page."""
    gateway = console.gateway
    await gateway.import_key(
        api_key="a-key-that-is-nearly-used-up", name="nightly", requests_per_hour=12
    )
    await import_api_keys(
        gateway.settings,
        [
            {
                **KEY,
                "merchant": name,
                "api_key": f"api-key-of-{name}",
                "access_key": f"AK{position}",
                "name": name,
            }
            for position, name in enumerate(OTHER_MERCHANTS)
        ],
    )
    async with open_store(gateway.settings.state) as store:
        await _add_history(store)
        await _add_comparisons(store)
    for _ in range(11):
        await gateway.request(
            "GET", "/v1/recipients", headers={"X-API-Key": "a-key-that-is-nearly-used-up"}
        )
    recipient = await create_recipient(gateway)
    batch = await create_batch(gateway, recipient, "10.00")
    await gateway.request("DELETE", f"/v1/batches/{batch}")
    # Before the write is lost: a read after it would settle it. The first read is without a fault.
    console.simulator.service.faults.append(Fault("GET", "/v1/recipients/*"))
    console.simulator.service.faults.append(Fault("GET", "*", status=500, times=2000))
    console.simulator.service.faults.append(
        Fault("POST", "/v1/recipients/*/accounts", close="after")
    )
    with disable_immediate_read():
        await gateway.request("POST", f"/v1/recipients/{recipient}/payout-methods", BANK)


async def _add_history(store: Store) -> None:
    rng = random.Random(4)
    now = datetime.now(UTC)
    counts: dict[CountKey, RequestCounts] = {}
    owners = [SHOP, *(Tenant(name, "sandbox") for name in OTHER_MERCHANTS)]
    began_at = now - timedelta(hours=30)
    while began_at < now - 5 * MINUTE:
        hour = began_at.hour + began_at.minute / 60
        load = 0.35 + 0.65 * math.sin(math.pi * hour / 24) ** 2
        is_outage = began_at > now - timedelta(hours=4) < began_at + timedelta(minutes=15)
        error_share = 0.3 if is_outage else 0.004
        # The last merchant has been inactive for days.
        for weight, tenant in zip((6, 3, 1), owners[:3], strict=True):
            for operation, share in OPERATIONS.items():
                if requests := int(share * weight * load * rng.uniform(0.6, 1.4)):
                    count_key = CountKey(began_at, MINUTE, *tenant, *_name_key(tenant, operation))
                    service = requests * int(rng.uniform(60, 120) * (1 + 2 * error_share))
                    counts[count_key] = RequestCounts(
                        requests,
                        int(requests * rng.uniform(0, 0.06)),
                        int(requests * error_share * rng.random() * 2),
                        rng.randint(200, 900),
                        began_at,
                        began_at,
                        _build_histogram(requests, 3, rng),
                        _build_histogram(requests, service / requests, rng),
                    )
        began_at += 5 * MINUTE
    await add_request_counts(store, {**counts, **_build_usage(owners, now, rng)})


def _name_key(tenant: Tenant, operation: str) -> tuple[str, str]:
    """Returns the key and the operation of requests; signed requests use no key."""
    key = "demo-sandbox" if tenant == SHOP else tenant.merchant
    return "" if operation == "signed" else key, operation


def _build_histogram(requests: int, ms: float, rng: random.Random) -> list[int]:
    """Most durations near ``ms``, a few much longer."""
    histogram = RequestCounts().gateway
    for _ in range(requests):
        duration = ms * rng.lognormvariate(0, 0.4) * (4 if rng.random() < 0.02 else 1)
        histogram[bisect_left(BUCKET_BOUNDS_MS, duration)] += 1
    return histogram


def _build_usage(
    owners: list[Tenant], now: datetime, rng: random.Random
) -> dict[CountKey, RequestCounts]:
    counts: dict[CountKey, RequestCounts] = {}
    for days_ago in range(59, -1, -1):
        recorded_at = now - timedelta(days=days_ago)
        for number, tenant in enumerate(owners):
            if number == 3 and days_ago < 12:
                continue
            for operation, frequency in OPERATIONS.items():
                share = (60 - days_ago) / 60 if operation == "signed" else (days_ago + 20) / 80
                requests = int(frequency * (4 - number) * share * rng.uniform(20, 30))
                count_key = CountKey(recorded_at, DAY, *tenant, *_name_key(tenant, operation))
                counts[count_key] = RequestCounts(
                    requests,
                    requests // 40,
                    requests // 900,
                    first_at=recorded_at,
                    last_at=recorded_at,
                )
    return counts


async def _add_comparisons(store: Store) -> None:
    now = datetime.now(UTC)
    places = {
        ("value", "recipients[].payout.primary.currency"): 41,
        ("missing", "recipients[].address.phone"): 7,
    }
    await add_to_comparison_tallies(
        store,
        {
            TallyKey(SHOP, "demo-sandbox", "list_recipients"): Tally(
                *(812, 48, 2, 1, places, now, now),
                dict.fromkeys(places, DifferenceExample("3c11177e92518934a0385865", "USD", "EUR")),
            ),
            TallyKey(SHOP, "demo-sandbox", "get_recipient"): Tally(640, 0, 0, 0, {}, now, now),
            TallyKey(Tenant("northwind", "sandbox"), "northwind", "get_batch"): Tally(
                90, 0, 0, 0, {}, now, now
            ),
        },
    )


@contextmanager
def run_in_other_loop(build: Callable[[], Any]) -> Iterator[Any]:
    """Enters an asynchronous context in a thread with its own event loop, because Playwright runs one here."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    manager = build()

    def wait(awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, loop).result(60)

    try:
        yield wait(manager.__aenter__())
        wait(manager.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@asynccontextmanager
async def open_filled_console(
    folder: Path, **sections: Mapping[str, Any]
) -> AsyncIterator[ConsoleUnderTest]:
    async with open_console(folder, **sections) as console:
        await fill_history(console, folder)
        yield console
