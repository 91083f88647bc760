"""Amounts as clients write them, and the text that is sent upstream or the refusal.

Contract, section 5: strings and JSON numbers are read by their text: digits, and optionally a point
and exactly two more digits. Each row goes through all three operations that take an amount.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.payouts import create_batch, create_recipient, load_payment_ids, open_gateway_and_service
from tests.running_gateway import GatewayResponse, GatewayUnderTest
from tests.simulator import Service, Simulator

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class SentAmount:
    """An amount that is sent upstream as this text, and whether the simulator accepts it."""

    text: str
    is_accepted: bool = True


INVALID_CODE = "invalid_field"
MISSING_CODE = "empty_field"
"""The error if an amount is required; an update without it changes nothing."""

LARGE_NUMBER = "123456789012345678901234567890"

AMOUNTS: dict[str, SentAmount | str] = {
    # Text
    '"1"': SentAmount("1"),
    '"1.00"': SentAmount("1.00"),
    '"01"': SentAmount("01"),
    '"9007199254740993.01"': SentAmount("9007199254740993.01"),
    f'"{LARGE_NUMBER}.07"': SentAmount(f"{LARGE_NUMBER}.07"),
    f'"1{"0" * 30}"': SentAmount(f"1{'0' * 30}", is_accepted=False),
    f'"1{"0" * 400}"': SentAmount(f"1{'0' * 400}", is_accepted=False),
    f'"{"9" * 1001}"': INVALID_CODE,
    f'"1{"0" * 5000}"': INVALID_CODE,
    '"\\u0031.00"': SentAmount("1.00"),
    # Zero
    '"0"': INVALID_CODE,
    '"-0"': INVALID_CODE,
    "0": INVALID_CODE,
    "0.00": INVALID_CODE,
    "-0": INVALID_CODE,
    "0e5": INVALID_CODE,
    # Signs, exponents, decimals
    '"+1"': INVALID_CODE,
    '"-1"': INVALID_CODE,
    '"\u22121.00"': INVALID_CODE,
    '"1e2"': INVALID_CODE,
    '"1.0"': INVALID_CODE,
    '"1.000"': INVALID_CODE,
    '"1."': INVALID_CODE,
    '".5"': INVALID_CODE,
    # Separators, blanks, other digits
    '"1,00"': INVALID_CODE,
    '"1 000"': INVALID_CODE,
    '"1\u00a0000.00"': INVALID_CODE,
    '"1_000"': INVALID_CODE,
    '" 1.00"': INVALID_CODE,
    '"1.00\\n"': INVALID_CODE,
    '"1.00\\u0000"': INVALID_CODE,
    '"\uff11\uff10\uff10"': INVALID_CODE,
    '"\u0661\u0660\u0660"': INVALID_CODE,
    '"1\uff0e00"': INVALID_CODE,
    # Other notations of numbers, and texts that are no numbers
    '"0x10"': INVALID_CODE,
    '"NaN"': INVALID_CODE,
    '"$1.00"': INVALID_CODE,
    '"****47"': INVALID_CODE,
    # JSON numbers, by their text
    "1": SentAmount("1"),
    "1.00": SentAmount("1.00"),
    "0.10": SentAmount("0.10"),
    "9007199254740993.01": SentAmount("9007199254740993.01"),
    f"{LARGE_NUMBER}.07": SentAmount(f"{LARGE_NUMBER}.07"),
    f"1{'0' * 30}": SentAmount(f"1{'0' * 30}", is_accepted=False),
    f"1{'0' * 400}": SentAmount(f"1{'0' * 400}", is_accepted=False),
    "1.0": INVALID_CODE,
    "1.000": INVALID_CODE,
    "-1": INVALID_CODE,
    "1e2": INVALID_CODE,
    "1e-2": INVALID_CODE,
    "100e-2": INVALID_CODE,
    "1e400": INVALID_CODE,
    # Other values
    "true": INVALID_CODE,
    "[]": INVALID_CODE,
    "{}": INVALID_CODE,
    "null": MISSING_CODE,
    '""': MISSING_CODE,
}
INVALID_JSON_NUMBERS = ["01", "+1", "1.", ".5", "1_000", "0x10", "1,00", "NaN", "Infinity", "-", "1e", "--1",
            "\uff11", "'1.00'"]  # fmt: skip
"""Invalid as JSON numbers, so that the whole body is not JSON."""


def shorten(text: str) -> str:
    return text if len(text) < 40 else f"{text[:12]}…{len(text)}"


@dataclass(slots=True)
class OpenBatch:
    """A gateway with an open batch of one payment."""

    gateway: GatewayUnderTest
    simulator: Simulator
    recipient: str
    batch: str
    payment: str

    async def request(self, method: str, path: str, body: str) -> tuple[GatewayResponse, list[Any]]:
        """Returns the answer, and the bodies of the upstream writes."""
        request_count = len(self.simulator.service.requests)
        response = await self.gateway.request(method, f"/v1{path}", data=body.encode())
        calls = list(self.simulator.service.requests)[request_count:]
        return response, [call.body.decode() for call in calls if call.method != "GET"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def open_batch(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenBatch]:
    folder = tmp_path_factory.mktemp("amounts")
    async with open_gateway_and_service(folder, Service(seed=1)) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        yield OpenBatch(gateway, simulator, recipient, batch, payment)


def assert_amount_answer(
    response_and_calls: tuple[GatewayResponse, list[Any]],
    expected: SentAmount | str,
    field: str,
    sent_as: str,
) -> None:
    response, bodies = response_and_calls
    if isinstance(expected, SentAmount):
        assert response.status == (200 if expected.is_accepted else 406), response.text
        assert len(bodies) == 1
        assert f'"{sent_as}":"{expected.text}"' in bodies[0]
        expected_errors = [] if expected.is_accepted else [("invalid_field", field)]
    else:
        assert (response.status, bodies) == (406, []), response.text
        expected_errors = [(expected, field)]
    errors = response.body.get("errors", [])
    assert [(error["code"], error.get("field")) for error in errors] == expected_errors


@pytest.mark.parametrize(("amount", "expected"), AMOUNTS.items(), ids=map(shorten, AMOUNTS))
async def test_amount_is_sent_unchanged_or_refused_on_its_field(
    open_batch: OpenBatch, amount: str, expected: SentAmount | str
) -> None:
    payment = f'{{"recipient":{{"id":"{open_batch.recipient}"}},"sourceAmount":{amount}}}'
    batch = f'{{"sourceCurrency":"USD","payments":[{payment}]}}'
    create_result = await open_batch.request("POST", "/batches", batch)
    assert_amount_answer(create_result, expected, "payments[0].sourceAmount", "amount")
    add_result = await open_batch.request("POST", f"/batches/{open_batch.batch}/payments", payment)
    assert_amount_answer(add_result, expected, "sourceAmount", "amount")
    path = f"/batches/{open_batch.batch}/payments/{open_batch.payment}"
    await open_batch.request(
        "PATCH", path, '{"sourceAmount":"5.55"}'
    )  # an unchanged amount would not be sent
    change_result = await open_batch.request("PATCH", path, f'{{"sourceAmount":{amount}}}')
    if expected == MISSING_CODE:
        assert (change_result[0].status, change_result[1]) == (200, [])
    else:
        assert_amount_answer(change_result, expected, "sourceAmount", "sourceAmount")


@pytest.mark.parametrize(
    "amount", ['"1.00"', "1.00", '"1"', '"1.0"', "1e2", '"\uff11"', "0", "null"]
)
async def test_target_amount_follows_the_same_rules(open_batch: OpenBatch, amount: str) -> None:
    expected = AMOUNTS[amount.replace('"\uff11"', '"\uff11\uff10\uff10"')]
    target = f'"targetAmount":{amount},"targetCurrency":"EUR"'
    payment = f'{{"recipient":{{"id":"{open_batch.recipient}"}},{target}}}'
    batch = f'{{"sourceCurrency":"USD","payments":[{payment}]}}'
    # If neither amount is given, the source amount is reported as missing.
    field = "sourceAmount" if expected == MISSING_CODE else "targetAmount"
    assert_amount_answer(
        await open_batch.request("POST", "/batches", batch),
        expected,
        f"payments[0].{field}",
        "amount",
    )
    add_result = await open_batch.request("POST", f"/batches/{open_batch.batch}/payments", payment)
    assert_amount_answer(add_result, expected, field, "amount")


@pytest.mark.parametrize("amount", INVALID_JSON_NUMBERS)
async def test_invalid_json_number_makes_the_body_invalid(
    open_batch: OpenBatch, amount: str
) -> None:
    body = f'{{"sourceAmount":{amount}}}'
    response, bodies = await open_batch.request(
        "POST", f"/batches/{open_batch.batch}/payments", body
    )
    assert (response.status, bodies) == (406, [])
    (error,) = response.body["errors"]
    assert error["code"] == "invalid_field"
    assert error["message"].startswith("The body must be a JSON object: not JSON")


CONFLICTING_AMOUNTS = [
    ('"sourceAmount":"1.00","targetAmount":"1.00","targetCurrency":"EUR"', "targetAmount"),
    ('"sourceAmount":1,"targetAmount":1.00,"targetCurrency":"EUR"', "targetAmount"),
    ('"targetAmount":"1.00"', "targetCurrency"),
]


@pytest.mark.parametrize(("amounts", "field"), CONFLICTING_AMOUNTS)
async def test_conflicting_amounts_are_refused(
    open_batch: OpenBatch, amounts: str, field: str
) -> None:
    payment = f'{{"recipient":{{"id":"{open_batch.recipient}"}},{amounts}}}'
    code = "empty_field" if field == "targetCurrency" else "invalid_field"
    add_result = await open_batch.request("POST", f"/batches/{open_batch.batch}/payments", payment)
    assert_amount_answer(add_result, code, field, "")
    path = f"/batches/{open_batch.batch}/payments/{open_batch.payment}"
    assert_amount_answer(await open_batch.request("PATCH", path, f"{{{amounts}}}"), code, field, "")


async def test_sums_of_large_amounts_are_exact(open_batch: OpenBatch) -> None:
    amounts = [f"{LARGE_NUMBER}.07", f"{LARGE_NUMBER}.07", "0.01", "999999999999999999.99"]
    body = ",".join(
        f'{{"recipient":{{"id":"{open_batch.recipient}"}},"sourceAmount":"{amount}"}}'
        for amount in amounts
    )
    text = f'{{"sourceCurrency":"USD","payments":[{body}]}}'
    response, _bodies = await open_batch.request("POST", "/batches", text)
    assert response.body["batch"]["amount"] == "246913578025691357802469135780.14"
