"""The same translation, written quickly with FastAPI, httpx and dictionaries.

It has only what is measured: no journal, no limits, no check of amounts, and a lost response is an error 500.
Run by uvicorn with its defaults, with ``SERVICE`` in the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Request

SERVICE = os.environ["SERVICE"]
KEYS = {"bench-api-key": ("BENCHACCESSKEY", "bench-secret")}
CURRENCIES = {"USD": "US Dollar", "EUR": "Euro"}
UNCHANGED_FIELDS = (
    "id referenceId email name firstName lastName type status complianceStatus compliance avatarUrl"
)
SAME_LATER = "language dob passport"
BANK_SAME = "currency country iban swiftBic bankAddress bankCity bankPostalCode"
BATCH = "id status amount totalPayments currency description sentAt completedAt createdAt updatedAt"

CredentialPair = tuple[str, str]
client = httpx.AsyncClient(base_url=SERVICE)


@asynccontextmanager
async def life(_app: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


app = FastAPI(lifespan=life)


def pair_of(x_api_key: str = Header()) -> CredentialPair:
    if x_api_key not in KEYS:
        raise HTTPException(403, "invalid_api_key")
    return KEYS[x_api_key]


async def call(
    credentials: CredentialPair,
    method: str,
    path: str,
    body: Any = None,
    params: dict[str, Any] | None = None,
) -> Any:
    content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    stamp = str(int(time.time()))
    text = f"{stamp}\n{method}\n{path}\n".encode() + content + b"\n"
    signature = hmac.new(credentials[1].encode(), text, hashlib.sha256).hexdigest()
    headers = {"Authorization": f"svcsign {credentials[0]}:{signature}", "X-SVC-Timestamp": stamp}
    if content:
        headers["Content-Type"] = "application/json"
    response = await client.request(method, path, content=content, headers=headers, params=params)
    service_body = response.json()
    if response.status_code != 200 or not service_body.get("ok"):
        raise HTTPException(
            406 if response.status_code == 400 else response.status_code, service_body
        )
    return service_body


def government_id(recipient: dict[str, Any], country: str | None) -> str | None:
    for entry in recipient.get("governmentIds") or []:
        if entry["country"] == country:
            return entry["value"]
    return None


def payout(recipient: dict[str, Any]) -> dict[str, Any]:
    accounts = recipient.get("accounts") or []
    if not accounts:
        return {"method": None}
    primary = next((account for account in accounts if account.get("primary")), accounts[-1])
    code = primary["currency"]
    name = {"code": code, "name": CURRENCIES.get(code, code)}
    method = "bank" if primary["type"] == "bank-transfer" else "wallet"
    legacy_payout: dict[str, Any] = {}
    for account in accounts:
        if account["type"] == "wallet":
            legacy_payout["wallet"] = {"address": account["emailAddress"]}
        else:
            legacy_payout["bank"] = bank(account, recipient)
    return {
        "autoswitch": {"limit": 1000, "active": False},
        "holdup": {"limit": 1000, "active": False},
        "primary": {"method": method, "currency": {**name, "currency": name}},
        "method": method,
        "methodDisplay": "Bank Transfer" if method == "bank" else "Wallet",
        "accounts": legacy_payout,
    }


def bank(account: dict[str, Any], recipient: dict[str, Any]) -> dict[str, Any]:
    country, branch = account["country"], account.get("branchId")
    number = account.get("accountNum") or ""
    return {
        **{name: account.get(name) for name in BANK_SAME.split()},
        "name": account["accountHolderName"],
        "accountNum": number if "*" in number else "*" * max(len(number) - 2, 2) + number[-2:],
        "institution": account.get("bankId" if country == "CA" else "bankName"),
        "branch": branch,
        "branchNum": branch if country == "CA" else None,
        "routing": branch if country == "US" else None,
        "bankProvince": account.get("bankRegionCode"),
        "governmentId": government_id(recipient, country),
    }


def recipient_answer(recipient: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: recipient.get(name) for name in UNCHANGED_FIELDS.split()},
        **{name: recipient.get(name) for name in SAME_LATER.split()},
        "ssn": recipient.get("ssn") or government_id(recipient, "US"),
        "address": recipient.get("address"),
        "payout": payout(recipient),
        **{name: recipient.get(name) for name in ("payoutMethod", "primaryCurrency")},
        **{name: recipient.get(name) for name in ("createdAt", "updatedAt")},
    }


@app.get("/v1/recipients/{id_}")
async def read_recipient(
    id_: str, credentials: CredentialPair = Depends(pair_of)
) -> dict[str, Any]:
    service_body = await call(credentials, "GET", f"/v1/recipients/{id_}")
    return {"ok": True, "recipient": recipient_answer(service_body["recipient"])}


@app.get("/v1/recipients")
async def list_recipients(
    page: int = 1, pageSize: int = 10, credentials: CredentialPair = Depends(pair_of)
) -> dict[str, Any]:
    params = {"page": page, "pageSize": pageSize, "orderBy": "createdAt", "sortBy": "desc"}
    service_body = await call(credentials, "GET", "/v1/recipients", params=params)
    rows = [
        recipient_answer(entry)
        for entry in service_body["recipients"]
        if entry["status"] != "archived"
    ]
    return {"ok": True, "recipients": rows, "meta": service_body["meta"]}


@app.post("/v1/recipients/{id_}/payout-methods")
async def create_payout_method(
    id_: str, request: Request, credentials: CredentialPair = Depends(pair_of)
) -> dict[str, Any]:
    body = await request.json()
    recipient = (await call(credentials, "GET", f"/v1/recipients/{id_}"))["recipient"]
    service_request = body["accounts"]["bank"]
    account = {
        "type": "bank-transfer",
        "country": service_request["country"],
        "currency": service_request.get("currency") or body["primary"]["currency"],
        "accountHolderName": service_request.get("name") or recipient["name"],
        "accountNum": service_request["accountNum"],
        "branchId": service_request["routing"],
        "primary": True,
    }
    service_body = (await call(credentials, "POST", f"/v1/recipients/{id_}/accounts", account))[
        "account"
    ]
    for entry in recipient["accounts"]:
        await call(
            credentials, "DELETE", f"/v1/recipients/{id_}/accounts/{entry['recipientAccountId']}"
        )
    return {"ok": True, **payout({**recipient, "accounts": [service_body]})}


@app.post("/v1/batches")
async def create_batch(
    request: Request, credentials: CredentialPair = Depends(pair_of)
) -> dict[str, Any]:
    body = await request.json()
    currency = body["sourceCurrency"]
    payments = [
        {
            "recipient": {"id": payment["recipient"]["id"]},
            "amount": payment["sourceAmount"],
            "currency": currency,
            "memo": payment["memo"],
        }
        for payment in body["payments"]
    ]
    service_request = {
        "currency": currency,
        "description": body["description"],
        "payments": payments,
    }
    service_body = (await call(credentials, "POST", "/v1/batches", service_request))["batch"]
    batch = {name: service_body.get(name) for name in BATCH.split()}
    batch["amount"] = str(
        sum(Decimal(payment["sourceAmount"]) for payment in service_body["payments"])
    )
    batch["totalPayments"] = len(service_body["payments"])
    return {"ok": True, "batch": batch}
