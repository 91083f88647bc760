"""A client of the legacy interface that checks the shape of every answer."""

import json
from decimal import Decimal

import pytest
from yarl import URL

STATUSES = {
    "invalid_api_key": 403,
    "not_authorized": 403,
    "not_found": 404,
    "invalid_status": 406,
    "invalid_field": 406,
    "empty_field": 406,
    "expired_quote": 406,
    "internal_server_error": 500,
}
# Words that only the current interface has.
CURRENT_ONLY_WORDS = (
    "archived", "review", "recipientAccountId", "accountHolderName", "branchId", "bankId",
    "bankRegionCode", "emailAddress", "governmentIds", "routeMinimum", "routeType",
    "estimatedFees", "contactEmails", "placeOfBirth", "processed_word",
)  # fmt: skip


class LegacyClient:
    def __init__(self, client):
        self.client = client
        self.service = client.service
        self.url = client.simulator.legacy.url
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
            answer = LegacyAnswer(response.status, await response.text(), response.headers)
        answer.check_shape()
        return answer

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

    async def create_batch(self, *payments, **fields):
        body = {"sourceCurrency": "USD", "payments": payments, **fields}
        return (await self.request_ok("POST", "/batches", body))["batch"]

    def build_payment(self, recipient, amount="10.00", **fields):
        return {"recipient": {"id": recipient["id"]}, "sourceAmount": amount, **fields}

    async def list_payments(self, batch):
        return (await self.request_ok("GET", f"/batches/{batch['id']}/payments"))["payments"]


class LegacyAnswer:
    def __init__(self, status, text, headers):
        self.status = status
        self.text = text
        self.headers = headers
        self.body = json.loads(text, parse_float=Decimal)

    @property
    def errors(self):
        return [(error["code"], error.get("field")) for error in self.body["errors"]]

    def check_shape(self):
        assert self.text.startswith('{"ok":true' if self.status == 200 else '{"ok":false')
        assert not [
            current_word for current_word in CURRENT_ONLY_WORDS if f'"{current_word}"' in self.text
        ], self.text
        if self.status == 200:
            return
        assert set(self.body) == {"ok", "errors"}
        for error in self.body["errors"]:
            assert STATUSES[error["code"]] == self.status
            assert error["message"]
            assert not [
                current_word
                for current_word in CURRENT_ONLY_WORDS
                if current_word in error["message"]
            ], self.text


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
def address():
    return {"street1": "1 High Street", "city": "Austin", "country": "US", "postalCode": "73301"}


@pytest.fixture
def us_payout():
    """A payout object for a request body: a bank account in the US."""
    bank = {"country": "US", "accountNum": "0123456747", "routing": "021000021"}
    return {"primary": {"method": "bank", "currency": "USD"}, "accounts": {"bank": bank}}


@pytest.fixture
def german_payout():
    bank = {"country": "DE", "iban": "DE89370400440532013000"}
    return {"primary": {"method": "bank", "currency": "EUR"}, "accounts": {"bank": bank}}


@pytest.fixture
def wallet_payout():
    wallet = {"address": "zoe@example.org"}
    return {"primary": {"method": "wallet", "currency": "USD"}, "accounts": {"wallet": wallet}}


@pytest.fixture
async def payee(legacy_client, us_payout, address):
    """A payee in US dollars, fee 1.00."""
    return await legacy_client.create_recipient(address=address, payout=us_payout)


@pytest.fixture
async def german_payee(legacy_client, german_payout, address):
    """A payee in euros, fee 1.00."""
    return await legacy_client.create_recipient(
        email="german@example.com", address=address | {"country": "DE"}, payout=german_payout
    )
