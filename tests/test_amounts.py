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

from gateway.simulator import Service, Simulator
from tests.house import Got, House
from tests.payday import make_batch, make_recipient, open_town, payment_ids

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Sent:
    """An amount that is sent upstream as this text, and whether the simulator accepts it."""

    text: str
    taken: bool = True


WRONG = "invalid_field"
MISSING = "empty_field"
"""The error if an amount is required; an update without it changes nothing."""

BIG = "123456789012345678901234567890"

AMOUNTS: dict[str, Sent | str] = {
    # Text
    '"1"': Sent("1"),
    '"1.00"': Sent("1.00"),
    '"100"': Sent("100"),
    '"100.50"': Sent("100.50"),
    '"0.01"': Sent("0.01"),
    '"0.10"': Sent("0.10"),
    '"10.10"': Sent("10.10"),
    '"01"': Sent("01"),
    '"007.50"': Sent("007.50"),
    '"00.01"': Sent("00.01"),
    '"000000000000000000000001"': Sent("000000000000000000000001"),
    '"9999.99"': Sent("9999.99"),
    '"9007199254740993"': Sent("9007199254740993"),
    '"9007199254740993.01"': Sent("9007199254740993.01"),
    '"999999999999999999.99"': Sent("999999999999999999.99"),
    '"12345678901234567890.12"': Sent("12345678901234567890.12"),
    f'"{BIG}"': Sent(BIG),
    f'"{BIG}.07"': Sent(f"{BIG}.07"),
    f'"1{"0" * 30}"': Sent(f"1{'0' * 30}", taken=False),
    f'"1{"0" * 400}"': Sent(f"1{'0' * 400}", taken=False),
    f'"{"9" * 1001}"': WRONG,
    f'"1{"0" * 5000}"': WRONG,
    '"\\u0031.00"': Sent("1.00"),
    '"1\\u002e00"': Sent("1.00"),
    # Zero
    '"0"': WRONG,
    '"0.00"': WRONG,
    '"00"': WRONG,
    '"000.00"': WRONG,
    '"-0"': WRONG,
    '"+0"': WRONG,
    '"-0.00"': WRONG,
    "0": WRONG,
    "0.00": WRONG,
    "-0": WRONG,
    "-0.00": WRONG,
    "0e5": WRONG,
    # Signs, exponents, decimals
    '"+1"': WRONG,
    '"-1"': WRONG,
    '"-1.00"': WRONG,
    '"\u22121.00"': WRONG,
    '"1e2"': WRONG,
    '"1E2"': WRONG,
    '"1e+2"': WRONG,
    '"1e-2"': WRONG,
    '"1.00e2"': WRONG,
    '"1.0"': WRONG,
    '"1.5"': WRONG,
    '"1.000"': WRONG,
    '"1.005"': WRONG,
    '"1."': WRONG,
    '".5"': WRONG,
    '".50"': WRONG,
    '"."': WRONG,
    '"1..00"': WRONG,
    '"1.0.0"': WRONG,
    '"1.00.00"': WRONG,
    # Separators, blanks, other digits
    '"1,00"': WRONG,
    '"1,000"': WRONG,
    '"1,000.00"': WRONG,
    '"1.000,00"': WRONG,
    '"1 000"': WRONG,
    '"1\u00a0000.00"': WRONG,
    '"1\u202f000.00"': WRONG,
    '"1_000"': WRONG,
    '"1_0.00"': WRONG,
    '"1\'000.00"': WRONG,
    '" 1.00"': WRONG,
    '"1.00 "': WRONG,
    '"\\t1.00"': WRONG,
    '"1.00\\n"': WRONG,
    '"\u00a01.00"': WRONG,
    '"\u200b1.00"': WRONG,
    '"1.00\\u0000"': WRONG,
    '"\uff11.\uff10\uff10"': WRONG,
    '"\uff11\uff10\uff10"': WRONG,
    '"\u0661\u0660\u0660"': WRONG,
    '"\u0661.\u0660\u0660"': WRONG,
    '"\u0967\u0966\u0966"': WRONG,
    '"1\uff0e00"': WRONG,
    '"\u00b9\u2070\u2070"': WRONG,
    '"\u2167"': WRONG,
    '"\u00bd"': WRONG,
    '"\u4e00\u767e"': WRONG,
    # Other writings of numbers, and what is none
    '"0x10"': WRONG,
    '"0b1"': WRONG,
    '"0o7"': WRONG,
    '"NaN"': WRONG,
    '"Infinity"': WRONG,
    '"inf"': WRONG,
    '"$1.00"': WRONG,
    '"1.00 USD"': WRONG,
    '"USD 1.00"': WRONG,
    '"1.00%"': WRONG,
    '"(1.00)"': WRONG,
    '"1/2"': WRONG,
    '"1*2"': WRONG,
    '"one"': WRONG,
    '"****47"': WRONG,
    '" "': WRONG,
    '"null"': WRONG,
    '"true"': WRONG,
    '"[1.00]"': WRONG,
    # JSON numbers, by their text
    "1": Sent("1"),
    "100": Sent("100"),
    "1.00": Sent("1.00"),
    "100.50": Sent("100.50"),
    "0.01": Sent("0.01"),
    "0.10": Sent("0.10"),
    "9007199254740993": Sent("9007199254740993"),
    "9007199254740993.01": Sent("9007199254740993.01"),
    f"{BIG}.07": Sent(f"{BIG}.07"),
    f"1{'0' * 30}": Sent(f"1{'0' * 30}", taken=False),
    f"1{'0' * 400}": Sent(f"1{'0' * 400}", taken=False),
    "1.0": WRONG,
    "1.5": WRONG,
    "1.000": WRONG,
    "10.1": WRONG,
    "-1": WRONG,
    "-1.00": WRONG,
    "1e2": WRONG,
    "1E2": WRONG,
    "1e-2": WRONG,
    "1.00e2": WRONG,
    "100e-2": WRONG,
    "1e400": WRONG,
    # Other values
    "true": WRONG,
    "false": WRONG,
    "[]": WRONG,
    '["1.00"]': WRONG,
    "{}": WRONG,
    '{"amount":"1.00"}': WRONG,
    "null": MISSING,
    '""': MISSING,
}
NOT_JSON = ["01", "+1", "1.", ".5", "1_000", "0x10", "1,00", "NaN", "Infinity", "-", "1e", "--1",
            "\uff11", "'1.00'"]  # fmt: skip
"""Invalid as JSON numbers, so that the whole body is not JSON."""


def shortened(text: str) -> str:
    return text if len(text) < 40 else f"{text[:12]}…{len(text)}"


@dataclass(slots=True)
class Till:
    """A gateway with an open batch of one payment."""

    house: House
    simulator: Simulator
    recipient: str
    batch: str
    payment: str

    async def ask(self, method: str, path: str, body: str) -> tuple[Got, list[Any]]:
        """Returns the answer, and the bodies of the upstream writes."""
        seen = len(self.simulator.service.requests)
        got = await self.house.ask(method, f"/v1{path}", data=body.encode())
        calls = list(self.simulator.service.requests)[seen:]
        return got, [call.body.decode() for call in calls if call.method != "GET"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def till(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Till]:
    folder = tmp_path_factory.mktemp("amounts")
    async with open_town(folder, Service(seed=1)) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        yield Till(house, simulator, recipient, batch, payment)


def assert_told(
    answered: tuple[Got, list[Any]], expected: Sent | str, field: str, sent_as: str
) -> None:
    got, bodies = answered
    if isinstance(expected, Sent):
        assert got.status == (200 if expected.taken else 406), got.text
        assert len(bodies) == 1
        assert f'"{sent_as}":"{expected.text}"' in bodies[0]
        told = [] if expected.taken else [("invalid_field", field)]
    else:
        assert (got.status, bodies) == (406, []), got.text
        told = [(expected, field)]
    errors = got.body.get("errors", [])
    assert [(one["code"], one.get("field")) for one in errors] == told


@pytest.mark.parametrize(("amount", "expected"), AMOUNTS.items(), ids=map(shortened, AMOUNTS))
async def test_an_amount_is_sent_on_as_its_text_or_refused_on_its_field(
    till: Till, amount: str, expected: Sent | str
) -> None:
    payment = f'{{"recipient":{{"id":"{till.recipient}"}},"sourceAmount":{amount}}}'
    batch = f'{{"sourceCurrency":"USD","payments":[{payment}]}}'
    made = await till.ask("POST", "/batches", batch)
    assert_told(made, expected, "payments[0].sourceAmount", "amount")
    added = await till.ask("POST", f"/batches/{till.batch}/payments", payment)
    assert_told(added, expected, "sourceAmount", "amount")
    path = f"/batches/{till.batch}/payments/{till.payment}"
    await till.ask(
        "PATCH", path, '{"sourceAmount":"5.55"}'
    )  # an unchanged amount would not be sent
    changed = await till.ask("PATCH", path, f'{{"sourceAmount":{amount}}}')
    if expected == MISSING:
        assert (changed[0].status, changed[1]) == (200, [])
    else:
        assert_told(changed, expected, "sourceAmount", "sourceAmount")


@pytest.mark.parametrize(
    "amount", ['"1.00"', "1.00", '"1"', '"1.0"', "1e2", '"\uff11"', "0", "null"]
)
async def test_a_target_amount_follows_the_same_rule(till: Till, amount: str) -> None:
    expected = AMOUNTS[amount.replace('"\uff11"', '"\uff11\uff10\uff10"')]
    target = f'"targetAmount":{amount},"targetCurrency":"EUR"'
    payment = f'{{"recipient":{{"id":"{till.recipient}"}},{target}}}'
    batch = f'{{"sourceCurrency":"USD","payments":[{payment}]}}'
    # If neither amount is given, the source amount is reported as missing.
    field = "sourceAmount" if expected == MISSING else "targetAmount"
    assert_told(
        await till.ask("POST", "/batches", batch), expected, f"payments[0].{field}", "amount"
    )
    added = await till.ask("POST", f"/batches/{till.batch}/payments", payment)
    assert_told(added, expected, field, "amount")


@pytest.mark.parametrize("amount", NOT_JSON)
async def test_what_is_no_number_of_json_makes_the_body_no_json(till: Till, amount: str) -> None:
    body = f'{{"sourceAmount":{amount}}}'
    got, bodies = await till.ask("POST", f"/batches/{till.batch}/payments", body)
    assert (got.status, bodies) == (406, [])
    (error,) = got.body["errors"]
    assert error["code"] == "invalid_field"
    assert error["message"].startswith("The body must be a JSON object: not JSON")


BOTH = [
    ('"sourceAmount":"1.00","targetAmount":"1.00","targetCurrency":"EUR"', "targetAmount"),
    ('"sourceAmount":1,"targetAmount":1.00,"targetCurrency":"EUR"', "targetAmount"),
    ('"targetAmount":"1.00"', "targetCurrency"),
]


@pytest.mark.parametrize(("amounts", "field"), BOTH)
async def test_both_amounts_or_a_target_without_its_currency_are_refused(
    till: Till, amounts: str, field: str
) -> None:
    payment = f'{{"recipient":{{"id":"{till.recipient}"}},{amounts}}}'
    code = "empty_field" if field == "targetCurrency" else "invalid_field"
    added = await till.ask("POST", f"/batches/{till.batch}/payments", payment)
    assert_told(added, code, field, "")
    path = f"/batches/{till.batch}/payments/{till.payment}"
    assert_told(await till.ask("PATCH", path, f"{{{amounts}}}"), code, field, "")


async def test_sums_of_amounts_are_exact_whatever_their_length(till: Till) -> None:
    amounts = [f"{BIG}.07", f"{BIG}.07", "0.01", "999999999999999999.99"]
    body = ",".join(
        f'{{"recipient":{{"id":"{till.recipient}"}},"sourceAmount":"{one}"}}' for one in amounts
    )
    text = f'{{"sourceCurrency":"USD","payments":[{body}]}}'
    got, _bodies = await till.ask("POST", "/batches", text)
    assert got.body["batch"]["amount"] == "246913578025691357802469135780.14"
