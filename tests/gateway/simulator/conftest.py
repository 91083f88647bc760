"""A signing client written independently of the product, and simulators for it."""

import hashlib
import hmac
import io
import json
from contextlib import AsyncExitStack
from decimal import Decimal

import aiohttp
import pytest
from yarl import URL

from tests.simulator import Service, start_simulator

NOW = 1_760_000_000.0


class FakeClock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


class SimulatorResponse:
    def __init__(self, status, headers, text):
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def json(self):
        return json.loads(self.text, parse_float=Decimal)

    @property
    def errors(self):
        """(code, field) of each error, after checking the shape of a failure."""
        assert self.json["ok"] is False
        assert all(error["message"] for error in self.json["errors"])
        return [(error["code"], error.get("field")) for error in self.json["errors"]]


class SignedClient:
    def __init__(self, session, simulator):
        self.session = session
        self.simulator = simulator
        self.service = simulator.service
        self.access_key = "SIMULATORACCESSKEY"
        self.secret_key = "simulator-secret-key"
        self.scheme = "svcsign"
        self.timestamp_header = "X-SVC-Timestamp"
        self.signs_query = False

    def sign(self, timestamp, method, target, body):
        signed_target = target if self.signs_query else target.split("?")[0]
        text = b"\n".join([timestamp.encode(), method.encode(), signed_target.encode(), body, b""])
        return hmac.new(self.secret_key.encode(), text, hashlib.sha256).hexdigest()

    async def call(self, method, target, body=None, *, timestamp=None, headers=None):
        """Send a signed request; `body` is a value to encode as JSON, or bytes."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        timestamp_text = str(int(self.service.clock())) if timestamp is None else timestamp
        request_headers = {
            "Authorization": f"{self.scheme} {self.access_key}:"
            + self.sign(timestamp_text, method, target, data),
            self.timestamp_header: timestamp_text,
        }
        if data:
            request_headers["Content-Type"] = "application/json"
        request_headers.update(headers or {})
        url = URL(self.simulator.url + target, encoded=True)
        async with self.session.request(
            method, url, data=io.BytesIO(data) if data else None, headers=request_headers
        ) as response:
            return SimulatorResponse(response.status, response.headers, await response.text())

    async def create_recipient(self, **fields):
        """Create a recipient; required fields that are not given get defaults."""
        body = {"type": "individual", "firstName": "Zoë", "lastName": "Peña"}
        body |= {"email": "zoe@example.com", **fields}
        answer = await self.call("POST", "/v1/recipients", body)
        assert answer.status == 200, answer.text
        return answer.json["recipient"]

    async def read_recipient(self, recipient):
        return (await self.call("GET", f"/v1/recipients/{recipient['id']}")).json["recipient"]

    def build_payment(self, recipient, amount="10.00", currency="USD", **fields):
        """Build a payment for a request body."""
        payment = {"recipient": {"id": recipient["id"]}, "amount": amount, "currency": currency}
        return {**payment, **fields}

    async def create_batch(self, *payments, currency="USD", **fields):
        """Create a batch of these payments and return it as the create answers it."""
        body = {"currency": currency, "payments": payments, **fields}
        answer = await self.call("POST", "/v1/batches", body)
        assert answer.status == 200, answer.text
        return answer.json["batch"]

    async def start_batch(self, batch):
        return await self.call("POST", f"/v1/batches/{batch['id']}/start-processing")

    async def read_summary(self, batch):
        answer = await self.call("GET", f"/v1/batch/{batch['id']}/summary")
        assert answer.status == 200, answer.text
        return answer.json["batchSummary"]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def connect_client(clock):
    """Return a factory that starts a simulator with these settings and returns its client."""
    async with AsyncExitStack() as stack:

        async def connect_client(**settings):
            service = Service(**{"clock": clock, "seed": 1, **settings})
            simulator = await start_simulator(service=service, legacy_port=0)
            stack.push_async_callback(simulator.stop)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            return SignedClient(session, simulator)

        yield connect_client


@pytest.fixture
async def client(connect_client):
    return await connect_client()


US_BANK = {
    "type": "bank-transfer",
    "currency": "USD",
    "country": "US",
    "accountHolderName": "Zoë Peña",
    "accountNum": "0123456747",
    "branchId": "021000021",
}
GERMAN_BANK = {
    "type": "bank-transfer",
    "currency": "EUR",
    "country": "DE",
    "accountHolderName": "Zoë Peña",
    "iban": "DE89370400440532013000",
}
ADDRESS = {"street1": "1 High Street", "city": "Austin", "country": "US", "postalCode": "73301"}


@pytest.fixture
async def payee(client):
    """A payee in US dollars by bank transfer: minimum 1, fee 1.00."""
    return await client.create_recipient(address=ADDRESS, account=US_BANK)


@pytest.fixture
async def german_payee(client):
    """A payee in euros by bank transfer: minimum 2, fee 1.00."""
    address = {**ADDRESS, "country": "DE"}
    return await client.create_recipient(name="Zoë", address=address, account=GERMAN_BANK)
