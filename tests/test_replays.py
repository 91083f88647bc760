"""A flow that is replayed makes the same calls as in its first run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.operating import LOST, post
from tests.payday import done, make_batch, make_recipient, payment_ids
from tests.sockets import until


async def test_one_that_had_to_wait_for_another_s_draft_is_played_again_to_its_end(
    tmp_path: Path,
) -> None:
    """What it was refused in the ledger is one of its steps."""
    async with post(tmp_path, seconds=5, inferred=False) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (payment,) = await payment_ids(here.house, batch)
        change = {"sourceAmount": "6.00"}
        await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
        here.breaks("POST", "/v1/batches", answer_delay=1)
        here.breaks("POST", "/v1/batches/*/generate-quote", **LOST)
        summary = asyncio.ensure_future(here.house.ask("GET", f"/v1/batches/{batch}/summary"))
        await until(lambda: here.sent("POST", "/v1/batches") == 2)
        path = f"/v1/batches/{batch}/generate-quote"
        assert (await here.house.ask("POST", path)).status == 500
        assert (await summary).status == 200
        again = await here.house.ask("POST", path)
        assert (again.status, again.body["batch"]["amount"]) == (200, "6.00"), again.text
        assert here.sent("POST", "/v1/batches/*/generate-quote") == 1
        assert here.service.created["batch"] == 2
