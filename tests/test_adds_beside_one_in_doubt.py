"""Payments that are added to a batch while another add to it is in doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.house import Got
from tests.operating import Post, eventually, post
from tests.payday import done, make_batch, make_recipient, payment_ids

ADDS = "/v1/batches/*/payments"

INFERRED = pytest.mark.parametrize(
    ("mode", "has_paths"), [("auto", True), ("auto", False), ("use", True), ("avoid", False)]
)


def section(mode: str) -> dict[str, Any]:
    return {"upstream": {"inferred_operations": mode}}


class Payday:
    """A batch of one payment, to which a second was added without an answer."""

    def __init__(self, here: Post, recipient: str, batch: str) -> None:
        self.here = here
        self.recipient = recipient
        self.path = f"/v1/batches/{batch}"
        self.batch = batch

    @classmethod
    async def begin(cls, here: Post) -> Payday:
        recipient = await make_recipient(here.house)
        return cls(here, recipient, await make_batch(here.house, recipient, "10.00"))

    def payment(self, amount: str, **more: Any) -> dict[str, Any]:
        return {"recipient": {"id": self.recipient}, "sourceAmount": amount, **more}

    async def add(self, amount: str, **more: Any) -> Got:
        headers = more.pop("headers", {})
        body = self.payment(amount, **more)
        return await self.here.house.ask("POST", f"{self.path}/payments", body, headers=headers)

    async def lose(self, amount: str, close: str, **more: Any) -> None:
        self.here.breaks("POST", ADDS, close=close)
        lost = await self.add(amount, **more)
        assert lost.status == 500
        assert "is unknown" in lost.body["errors"][0]["message"]

    async def amounts(self) -> list[str]:
        whole = await done(self.here.house, "GET", f"/batches/{self.batch}")
        there = whole["batch"]["payments"]["payments"]
        return sorted(one["sourceAmount"] for one in there)

    async def is_settled(self) -> bool:
        return not (await self.here.told("writes", "unsettled"))["writes"]

    async def settle(self) -> None:
        await self.here.lapse()
        await eventually(self.is_settled, 40)

    async def start(self) -> None:
        got = await self.here.house.ask("POST", f"{self.path}/start-processing")
        assert got.status == 200, got.text

    def paid(self) -> list[str]:
        """Returns the amounts that the service paid for the only started batch."""
        (started,) = self.here.service.starts
        payments = self.here.service.batch(started.batch_id).payments.values()
        return sorted(str(one.terms.source) for one in payments)


@INFERRED
@pytest.mark.parametrize("close", ["before", "after"])
async def test_other_adds_go_on(mode: str, has_paths: bool, close: str, tmp_path: Path) -> None:
    async with post(tmp_path, sections=section(mode), inferred=has_paths) as here:
        day = await Payday.begin(here)
        await day.lose("11.00", close)
        for amount in ("12.00", "13.00"):
            got = await day.add(amount)
            assert (got.status, got.body["payment"]["sourceAmount"]) == (200, amount), got.text
        happened = ["11.00"] if close == "after" else []
        assert await day.amounts() == ["10.00", *happened, "12.00", "13.00"]
        await day.settle()
        assert await day.amounts() == ["10.00", *happened, "12.00", "13.00"]
        # The retry of the add in doubt.
        again = await day.add("11.00")
        assert (again.status, again.body["payment"]["sourceAmount"]) == (200, "11.00"), again.text
        assert await day.amounts() == ["10.00", "11.00", "12.00", "13.00"]
        assert (await here.told("reconcile"))["findings"] == []
        await day.start()
        assert day.paid() == ["10.00", "11.00", "12.00", "13.00"]


@INFERRED
async def test_what_else_is_done_to_its_batch_waits(
    mode: str, has_paths: bool, tmp_path: Path
) -> None:
    async with post(tmp_path, sections=section(mode), inferred=has_paths) as here:
        day = await Payday.begin(here)
        one, another = ({"Idempotency-Key": name} for name in ("one", "another"))
        await day.lose("11.00", "after", headers=one)
        assert (await day.add("12.00")).status == 200
        there = await payment_ids(here.house, day.batch)
        writes = here.service.calls("POST", "/v1/batches/*/*")
        here.breaks(
            "GET", "/v1/batch/*/summary", status=503, times=10_000
        )  # no write is reconciled
        blocked: list[tuple[str, str, Any]] = [
            ("POST", "/generate-quote", None),
            ("POST", "/start-processing", None),
            ("DELETE", "", None),
            ("PATCH", "", {"payments": [day.payment("11.00")]}),
            *(("PATCH", f"/payments/{id_}", {"sourceAmount": "1.00"}) for id_ in there),
            *(("DELETE", f"/payments/{id_}", None) for id_ in there),
        ]
        for method, path, body in blocked:
            got = await here.house.ask(method, f"{day.path}{path}", body)
            assert got.status == 500, (method, path, got.text)
            assert int(got.headers["Retry-After"]) > 0
            assert "nothing of this request was done" in got.body["errors"][0]["message"]
        for headers, says in ((one, "is unknown"), (another, "nothing of this request was done")):
            same = await day.add("11.00", headers=headers)
            assert (same.status, int(same.headers["Retry-After"]) > 0) == (500, True)
            assert says in same.body["errors"][0]["message"]
        assert here.service.calls("POST", "/v1/batches/*/*") == writes
        assert here.service.calls("PATCH", "/v1/batches/*") == []
        assert here.service.calls("DELETE", "/v1/batches/*") == []


@pytest.mark.parametrize("answers", ["full", "bare"])
@pytest.mark.parametrize("close", ["before", "after"])
async def test_it_is_never_taken_for_another_that_pays_the_same(
    close: str, answers: str, tmp_path: Path
) -> None:
    """Payments of one amount to one recipient differ by their memo."""
    async with post(tmp_path, answers=answers) as here:
        day = await Payday.begin(here)
        await day.lose("11.00", close, memo="first")
        other = await day.add("11.00", memo="second")
        assert (other.status, other.body["payment"]["memo"]) == (200, "second"), other.text
        await day.settle()
        again = await day.add("11.00", memo="first")
        assert (again.status, again.body["payment"]["memo"]) == (200, "first"), again.text
        assert again.body["payment"]["id"] != other.body["payment"]["id"]
        assert await day.amounts() == ["10.00", "11.00", "11.00"]
        await day.start()
        assert day.paid() == ["10.00", "11.00", "11.00"]


@pytest.mark.parametrize("close", ["before", "after"])
async def test_several_adds_in_doubt_are_each_settled_by_their_own(
    close: str, tmp_path: Path
) -> None:
    async with post(tmp_path) as here:
        day = await Payday.begin(here)
        await day.lose("11.00", close)
        await day.lose("12.00", "after")
        await day.lose("13.00", "before")
        assert (await day.add("14.00")).status == 200
        await day.settle()
        for amount in ("11.00", "12.00", "13.00"):
            assert (await day.add(amount)).status == 200
        amounts = ["10.00", "11.00", "12.00", "13.00", "14.00"]
        assert await day.amounts() == amounts
        await day.start()
        assert day.paid() == amounts


async def test_an_add_that_tells_no_id_is_told_apart(tmp_path: Path) -> None:
    """The response is only ``ok``: the payment is recognized by its amount."""
    async with post(tmp_path) as here:
        day = await Payday.begin(here)
        await day.lose("11.00", "before", memo="first")
        here.breaks("POST", ADDS, status=200, body=b'{"ok":true}', executes=True)
        other = await day.add("11.00", memo="second")
        assert (other.status, other.body["payment"]["memo"]) == (200, "second"), other.text
        await day.settle()
        again = await day.add("11.00", memo="first")
        assert (again.status, "Idempotent-Replayed" in again.headers) == (200, False), again.text
        assert here.service.created["payment"] == 3
        await day.start()
        assert day.paid() == ["10.00", "11.00", "11.00"]
