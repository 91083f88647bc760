"""Valid bodies with one to three malformed values, over all operations that take a body.

Random bodies of schemathesis are seldom nearly valid. These bodies are complete, with every field,
and contain malformed values: the answer is 200, 404 or 406. They run on SQLite and on PostgreSQL,
which accepts less (no NUL in text). EXAMPLES=100 tries two thousand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.settings import State
from tests.gateway.storage.conftest import database, postgres  # noqa: F401 - fixtures
from tests.gateway_in_thread import run_gateway_in_thread
from tests.malformed_values import (
    MALFORMED_VALUES,
    OPERATIONS,
    PAYMENT,
    PERSON,
    dump_json,
    iterate_paths,
    replace_at,
)
from tests.running_gateway import KEY
from tests.simulator import Service, ServiceOptions

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))


@st.composite
def malformed_requests(draw: st.DrawFn) -> tuple[str, str, str]:
    method, path, body = draw(st.sampled_from(OPERATIONS))
    for _ in range(draw(st.integers(1, 3))):
        location = draw(st.sampled_from(list(iterate_paths(body))))
        body = replace_at(
            body, location, draw(st.one_of(st.sampled_from(MALFORMED_VALUES), st.text(max_size=8)))
        )
    return method, path, dump_json(body)


class BodyClient:
    def __init__(self, url: str) -> None:
        self.url = f"{url}/v1"
        self.session = requests.Session()
        self.session.headers["X-API-Key"] = KEY["api_key"]
        self.count = 0
        self.names: dict[str, str] = {}

    def send(self, method: str, path: str, body: str) -> requests.Response:
        if self.count % 20 == 0:
            self.names = self._create_objects()
        self.count += 1
        for name, id_ in self.names.items():
            path, body = path.replace(f"{{{name}}}", id_), body.replace(f"{{{name}}}", id_)
        return self.session.request(method, self.url + path, data=body.encode(), timeout=10)

    def _create_objects(self) -> dict[str, str]:
        body = {
            **{name: PERSON[name] for name in ("type", "firstName", "lastName", "address")},
            "email": f"ada{self.count}@example.com",
            "payout": {"accounts": {"wallet": {"address": "ada@example.com"}}},
        }
        recipient = self._request_successfully("POST", "/recipients", body)["recipient"]["id"]
        payments = [{"recipient": {"id": recipient}, "sourceAmount": "5.00"}] * 2
        body = {"sourceCurrency": "USD", "payments": payments}
        batch = self._request_successfully("POST", "/batches", body)["batch"]["id"]
        listed_payments = self._request_successfully("GET", f"/batches/{batch}/payments")[
            "payments"
        ]
        payment, other_payment = (entry["id"] for entry in listed_payments)
        return {"recipient": recipient, "batch": batch, "payment": payment, "other": other_payment}

    def _request_successfully(self, method: str, path: str, body: Any = None) -> Any:
        response = self.session.request(method, self.url + path, json=body, timeout=10)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(params=["sqlite, inferred", "postgresql, documented"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BodyClient]:
    kind, _, connection_kind = request.param.partition(", ")
    sections: dict[str, Any] = {"limits": {"requests_per_hour": 10_000_000}}
    if kind == "postgresql":
        state: State = request.getfixturevalue("postgres")
        sections["state"] = {"url": state.url, "encryption_key_file": state.encryption_key_file}
    service = Service(seed=1, options=ServiceOptions(inferred=connection_kind == "inferred"))
    with run_gateway_in_thread(tmp_path, service, **sections) as gateway:
        client = BodyClient(gateway.url)
        yield client
        client.session.close()


def test_malformed_body_is_executed_or_refused_and_never_an_internal_error(
    client: BodyClient,
) -> None:
    @settings(
        max_examples=20 * EXAMPLES or 150,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=malformed_requests())
    def send_and_check(request: tuple[str, str, str]) -> None:
        response = client.send(*request)
        assert response.status_code in (200, 404, 406), response.text
        begins = (
            b'{"ok":true' if response.status_code == 200 else b'{"ok":false,"errors":[{"code":"'
        )
        assert response.content.startswith(begins)

    send_and_check()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/recipients", {"ids": ["R-\0"]}),
        ("DELETE", "/recipients", {"ids": ["R-" + "1" * 20_000]}),
        ("DELETE", "/recipients", {"ids": [f"R-{number}" for number in range(20_000)]}),
        ("POST", "/batches", {"sourceCurrency": "USD", "payments": [{**PAYMENT, "recipient": {"id": "R-\0"}}]}),
        ("POST", "/batches", {"sourceCurrency": "USD", "payments": [
            {**PAYMENT, "recipient": {"email": f"{'a' * 30_000}@example.com"}}]}),
    ],
)  # fmt: skip
def test_former_internal_errors_are_refused(
    client: BodyClient, method: str, path: str, body: Any
) -> None:
    """A NUL in an id, an id or an address longer than a line may be, and many ids at once."""
    response = client.send(method, path, json.dumps(body))
    assert response.status_code == (404 if method == "DELETE" else 406), response.text
