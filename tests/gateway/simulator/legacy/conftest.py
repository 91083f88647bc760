"""A client of the legacy interface that checks the shape of every answer."""

import json
from decimal import Decimal

import pytest
from yarl import URL


class LegacyClient:
    def __init__(self, client):
        self.client = client
        self.service = client.service
        self.url = client.simulator.legacy_url
        self.api_key = "simulator-api-key"

    async def request(self, method, path, body=None, *, headers=None, data=None):
        """Send a request; `path` follows /v1 and is sent unchanged."""
        request_headers = {"X-API-Key": self.api_key, **(headers or {})}
        if body is not None:
            data = json.dumps(body, default=str).encode()
        url = URL(f"{self.url}/v1{path}", encoded=True)
        async with self.client.session.request(
            method, url, data=data, headers=request_headers
        ) as response:
            return LegacyAnswer(response.status, await response.text(), response.headers)

    async def request_ok(self, method, path, body=None):
        answer = await self.request(method, path, body)
        assert answer.status == 200, answer.text
        return answer.body

    async def request_refused(self, method, path, body=None):
        answer = await self.request(method, path, body)
        assert answer.status != 200, answer.text
        return answer.status, answer.errors

    async def create_recipient(self, **fields):
        body = {"type": "individual", "firstName": "Zoë", "lastName": "Peña"}
        body |= {"email": "zoe@example.com", **fields}
        return (await self.request_ok("POST", "/recipients/", body))["recipient"]

    async def read_recipient(self, recipient):
        return (await self.request_ok("GET", f"/recipients/{recipient['id']}"))["recipient"]

    async def create_batch(self, recipient):
        payment = {"recipient": {"id": recipient["id"]}, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        return (await self.request_ok("POST", "/batches", body))["batch"]

    async def list_payments(self, batch):
        return (await self.request_ok("GET", f"/batches/{batch['id']}/payments"))["payments"]


class LegacyAnswer:
    def __init__(self, status, text, headers):
        self.status = status
        self.text = text
        self.headers = headers
        self.body = json.loads(text, parse_float=Decimal)
        assert text.startswith('{"ok":true' if status == 200 else '{"ok":false')

    @property
    def errors(self):
        return [(error["code"], error.get("field")) for error in self.body["errors"]]


@pytest.fixture
async def legacy_client(client):
    return LegacyClient(client)


@pytest.fixture
def connect_legacy_client(connect_client):
    """Like `connect_client`, but return a client of the legacy interface."""

    async def connect_legacy_client(**settings):
        return LegacyClient(await connect_client(**settings))

    return connect_legacy_client


@pytest.fixture
def wallet_payout():
    wallet = {"address": "zoe@example.org"}
    return {"primary": {"method": "wallet", "currency": "USD"}, "accounts": {"wallet": wallet}}


@pytest.fixture
async def payee(legacy_client, wallet_payout):
    return await legacy_client.create_recipient(payout=wallet_payout)
