"""A gateway in front of a simulated service, with recipients and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Service, Simulator, start_simulator

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
}
WALLET = {
    "primary": {"method": "wallet", "currency": "USD"},
    "accounts": {"wallet": {"address": "ada@wallet.example.com"}},
}
BANK: dict[str, Any] = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {
        "bank": {
            "country": "US",
            "currency": "USD",
            "accountNum": "1234567",
            "routing": "021000021",
        }
    },
}


@asynccontextmanager
async def open_gateway_and_service(
    folder: Path, service: Service, **sections: Mapping[str, Any]
) -> AsyncIterator[tuple[GatewayUnderTest, Simulator]]:
    """Runs a gateway and the simulated service behind it."""
    simulator = await start_simulator(service=service)
    try:
        async with open_gateway(folder, simulator.url, **sections) as gateway:
            yield gateway, simulator
    finally:
        await simulator.stop()


async def request_successfully(
    gateway: GatewayUnderTest, method: str, path: str, body: Any = None, **options: Any
) -> Any:
    """The body of a response that must have status 200."""
    response = await gateway.request(method, f"/v1{path}", body, **options)
    assert response.status == 200, (method, path, response.status, response.text)
    return response.body


async def create_recipient(gateway: GatewayUnderTest, name: str = "ada", **options: Any) -> str:
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
    response = await request_successfully(gateway, "POST", "/recipients", body, **options)
    return str(response["recipient"]["id"])


async def create_batch(
    gateway: GatewayUnderTest, recipient: str, *amounts: str, **options: Any
) -> str:
    payments = [{"recipient": {"id": recipient}, "sourceAmount": amount} for amount in amounts]
    body = {"sourceCurrency": "USD", "payments": payments}
    return str(
        (await request_successfully(gateway, "POST", "/batches", body, **options))["batch"]["id"]
    )


async def load_payment_ids(gateway: GatewayUnderTest, batch: str, **options: Any) -> list[str]:
    batch_body = (await request_successfully(gateway, "GET", f"/batches/{batch}", **options))[
        "batch"
    ]
    return [payment["id"] for payment in batch_body["payments"]["payments"]]
