"""A gateway in front of a simulated service, with recipients and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.simulator import Service, Simulator, start
from tests.running_gateway import House, open_house

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
        async with open_house(folder, simulator.url, **sections) as gateway:
            yield gateway, simulator
    finally:
        await simulator.stop()


async def done(gateway: House, method: str, path: str, body: Any = None, **more: Any) -> Any:
    """The body of a response that must have status 200."""
    response = await gateway.request(method, f"/v1{path}", body, **more)
    assert response.status == 200, (method, path, response.status, response.text)
    return response.body


async def make_recipient(gateway: House, name: str = "ada", **more: Any) -> str:
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
    created = await done(gateway, "POST", "/recipients", body, **more)
    return str(created["recipient"]["id"])


async def make_batch(gateway: House, recipient: str, *amounts: str, **more: Any) -> str:
    payments = [{"recipient": {"id": recipient}, "sourceAmount": amount} for amount in amounts]
    body = {"sourceCurrency": "USD", "payments": payments}
    return str((await done(gateway, "POST", "/batches", body, **more))["batch"]["id"])


async def payment_ids(gateway: House, batch: str, **more: Any) -> list[str]:
    batch_body = (await done(gateway, "GET", f"/batches/{batch}", **more))["batch"]
    return [payment["id"] for payment in batch_body["payments"]["payments"]]
