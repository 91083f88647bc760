"""The summary with which the service shows its only batch."""

from __future__ import annotations

import json
from time import time
from typing import Any

from tests.running_gateway import GatewayUnderTest
from tests.signed_requests import SigningClient, send_raw
from tests.simulator import Fault, Service

NOT_FOUND = b'{"ok":false,"errors":[{"code":"not_found","message":"Object not found."}]}'


async def load_service_summary(gateway: GatewayUnderTest, service: Service) -> dict[str, Any]:
    """Returns the body with which the service shows its only batch."""
    (batch,) = service.find_or_create_tenant().batches
    request = SigningClient().build_request(target=f"/v1/batch/{batch}/summary", stamp=int(time()))
    body: dict[str, Any] = json.loads((await send_raw(gateway, request)).body)
    return body


def show_summary(service: Service, summary: dict[str, Any]) -> None:
    """Lets the service show this summary until its faults are cleared."""
    body = json.dumps(summary).encode()
    service.faults.append(Fault("GET", "/v1/batch/*/summary", status=200, body=body, times=100))


def hide_path(service: Service, path: str) -> None:
    """Lets the service answer reads of a path with 404 until its faults are cleared."""
    service.faults.append(Fault("GET", path, status=404, body=NOT_FOUND, times=100))
