"""A gateway in front of a simulated service, with recipients and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.simulator import Service, Simulator, start
from tests.house import House, open_house

WALLET = {
    "primary": {"method": "wallet", "currency": "USD"},
    "accounts": {"wallet": {"address": "ada@wallet.example.com"}},
}


@asynccontextmanager
async def open_town(
    folder: Path, service: Service, **sections: Mapping[str, Any]
) -> AsyncIterator[tuple[House, Simulator]]:
    """Runs a gateway and the simulated service behind it."""
    simulator = await start(service=service)
    try:
        async with open_house(folder, simulator.url, **sections) as house:
            yield house, simulator
    finally:
        await simulator.stop()


async def done(house: House, method: str, path: str, body: Any = None, **more: Any) -> Any:
    """The body of a response that must have status 200."""
    got = await house.ask(method, f"/v1{path}", body, **more)
    assert got.status == 200, (method, path, got.status, got.text)
    return got.body


async def make_recipient(house: House, name: str = "ada", **more: Any) -> str:
    """Creates a recipient who can be paid; returns the legacy id."""
    body = {
        "type": "individual",
        "firstName": "Ada",
        "lastName": name.title(),
        "email": f"{name}@example.com",
        "address": {
            "street1": "1 Main Street",
            "city": "New York",
            "region": "NY",
            "country": "US",
        },
        "payout": WALLET,
    }
    made = await done(house, "POST", "/recipients", body, **more)
    return str(made["recipient"]["id"])


async def make_batch(house: House, recipient: str, *amounts: str, **more: Any) -> str:
    payments = [{"recipient": {"id": recipient}, "sourceAmount": amount} for amount in amounts]
    body = {"sourceCurrency": "USD", "payments": payments}
    return str((await done(house, "POST", "/batches", body, **more))["batch"]["id"])


async def payment_ids(house: House, batch: str, **more: Any) -> list[str]:
    whole = (await done(house, "GET", f"/batches/{batch}", **more))["batch"]
    return [payment["id"] for payment in whole["payments"]["payments"]]
