"""A flow that is replayed makes the same calls as in its first run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.operator_commands import RESPONSE_LOST, open_operated_gateway
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.sockets import wait_until


async def test_flow_that_waited_for_a_draft_is_replayed_to_its_end(
    tmp_path: Path,
) -> None:
    """A refused compare-and-set of an object state is one of the recorded steps."""
    async with open_operated_gateway(tmp_path, seconds=5, inferred=False) as setup:
        batch = await create_batch(setup.gateway, await create_recipient(setup.gateway), "5.00")
        (payment,) = await load_payment_ids(setup.gateway, batch)
        change = {"sourceAmount": "6.00"}
        await request_successfully(
            setup.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        setup.add_fault("POST", "/v1/batches", answer_delay=1)
        setup.add_fault("POST", "/v1/batches/*/generate-quote", **RESPONSE_LOST)
        summary = asyncio.ensure_future(
            setup.gateway.request("GET", f"/v1/batches/{batch}/summary")
        )
        await wait_until(lambda: setup.count_calls("POST", "/v1/batches") == 2)
        path = f"/v1/batches/{batch}/generate-quote"
        assert (await setup.gateway.request("POST", path)).status == 500
        assert (await summary).status == 200
        retry_response = await setup.gateway.request("POST", path)
        assert (retry_response.status, retry_response.body["batch"]["amount"]) == (200, "6.00"), (
            retry_response.text
        )
        assert setup.count_calls("POST", "/v1/batches/*/generate-quote") == 1
        assert setup.service.creation_counts["batch"] == 2
