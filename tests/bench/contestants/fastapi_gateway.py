"""The same translation as one would quickly write it: FastAPI, httpx, dictionaries.

Only what is measured, and nothing of what makes it hard: no ledger, no limits, amounts are not
checked, a lost answer is an error 500. Run by uvicorn as it comes, with ``SERVICE`` in the environment.
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
SAME = (
    "id referenceId email name firstName lastName type status complianceStatus compliance avatarUrl"
)
SAME_LATER = "language dob passport"
BANK_SAME = "currency country iban swiftBic bankAddress bankCity bankPostalCode"
BATCH = "id status amount totalPayments currency description sentAt completedAt createdAt updatedAt"

Pair = tuple[str, str]
client = httpx.AsyncClient(base_url=SERVICE)


@asynccontextmanager
async def life(_app: FastAPI) -> AsyncIterator[None]:
    async with client:
        yield


app = FastAPI(lifespan=life)


def pair_of(x_api_key: str = Header()) -> Pair:
    if x_api_key not in KEYS:
        raise HTTPException(403, "invalid_api_key")
    return KEYS[x_api_key]


async def call(
    pair: Pair, method: str, path: str, body: Any = None, params: dict[str, Any] | None = None
) -> Any:
    content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    stamp = str(int(time.time()))
    text = f"{stamp}\n{method}\n{path}\n".encode() + content + b"\n"
    signature = hmac.new(pair[1].encode(), text, hashlib.sha256).hexdigest()
    headers = {"Authorization": f"svcsign {pair[0]}:{signature}", "X-SVC-Timestamp": stamp}
    if content:
        headers["Content-Type"] = "application/json"
    answer = await client.request(method, path, content=content, headers=headers, params=params)
    given = answer.json()
    if answer.status_code != 200 or not given.get("ok"):
        raise HTTPException(406 if answer.status_code == 400 else answer.status_code, given)
    return given


def government_id(recipient: dict[str, Any], country: str | None) -> str | None:
    for one in recipient.get("governmentIds") or []:
        if one["country"] == country:
            return one["value"]
    return None


def payout(recipient: dict[str, Any]) -> dict[str, Any]:
    accounts = recipient.get("accounts") or []
    if not accounts:
        return {"method": None}
    primary = next((one for one in accounts if one.get("primary")), accounts[-1])
    code = primary["currency"]
    name = {"code": code, "name": CURRENCIES.get(code, code)}
    method = "bank" if primary["type"] == "bank-transfer" else "wallet"
    shown: dict[str, Any] = {}
    for account in accounts:
        if account["type"] == "wallet":
            shown["wallet"] = {"address": account["emailAddress"]}
        else:
            shown["bank"] = bank(account, recipient)
    return {
        "autoswitch": {"limit": 1000, "active": False},
        "holdup": {"limit": 1000, "active": False},
        "primary": {"method": method, "currency": {**name, "currency": name}},
        "method": method,
        "methodDisplay": "Bank Transfer" if method == "bank" else "Wallet",
        "accounts": shown,
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
        **{name: recipient.get(name) for name in SAME.split()},
        **{name: recipient.get(name) for name in SAME_LATER.split()},
        "ssn": recipient.get("ssn") or government_id(recipient, "US"),
        "address": recipient.get("address"),
        "payout": payout(recipient),
        **{name: recipient.get(name) for name in ("payoutMethod", "primaryCurrency")},
        **{name: recipient.get(name) for name in ("createdAt", "updatedAt")},
    }


@app.get("/v1/recipients/{id_}")
async def read_recipient(id_: str, pair: Pair = Depends(pair_of)) -> dict[str, Any]:
    given = await call(pair, "GET", f"/v1/recipients/{id_}")
    return {"ok": True, "recipient": recipient_answer(given["recipient"])}


@app.get("/v1/recipients")
async def list_recipients(
    page: int = 1, pageSize: int = 10, pair: Pair = Depends(pair_of)
) -> dict[str, Any]:
    params = {"page": page, "pageSize": pageSize, "orderBy": "createdAt", "sortBy": "desc"}
    given = await call(pair, "GET", "/v1/recipients", params=params)
    rows = [recipient_answer(one) for one in given["recipients"] if one["status"] != "archived"]
    return {"ok": True, "recipients": rows, "meta": given["meta"]}


@app.post("/v1/recipients/{id_}/payout-methods")
async def create_payout_method(
    id_: str, request: Request, pair: Pair = Depends(pair_of)
) -> dict[str, Any]:
    body = await request.json()
    recipient = (await call(pair, "GET", f"/v1/recipients/{id_}"))["recipient"]
    sent = body["accounts"]["bank"]
    account = {
        "type": "bank-transfer",
        "country": sent["country"],
        "currency": sent.get("currency") or body["primary"]["currency"],
        "accountHolderName": sent.get("name") or recipient["name"],
        "accountNum": sent["accountNum"],
        "branchId": sent["routing"],
        "primary": True,
    }
    given = (await call(pair, "POST", f"/v1/recipients/{id_}/accounts", account))["account"]
    for one in recipient["accounts"]:
        await call(pair, "DELETE", f"/v1/recipients/{id_}/accounts/{one['recipientAccountId']}")
    return {"ok": True, **payout({**recipient, "accounts": [given]})}


@app.post("/v1/batches")
async def create_batch(request: Request, pair: Pair = Depends(pair_of)) -> dict[str, Any]:
    body = await request.json()
    currency = body["sourceCurrency"]
    payments = [
        {
            "recipient": {"id": one["recipient"]["id"]},
            "amount": one["sourceAmount"],
            "currency": currency,
            "memo": one["memo"],
        }
        for one in body["payments"]
    ]
    sent = {"currency": currency, "description": body["description"], "payments": payments}
    given = (await call(pair, "POST", "/v1/batches", sent))["batch"]
    batch = {name: given.get(name) for name in BATCH.split()}
    batch["amount"] = str(sum(Decimal(one["sourceAmount"]) for one in given["payments"]))
    batch["totalPayments"] = len(given["payments"])
    return {"ok": True, "batch": batch}
