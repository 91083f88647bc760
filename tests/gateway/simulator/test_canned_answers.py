"""Operations of sub-merchants and subscriptions, which have one answer each."""

import pytest

from gateway.simulator.canned_answers import CANNED_ANSWERS


@pytest.mark.parametrize(("method", "path", "answer"), CANNED_ANSWERS)
async def test_operation_is_signed_and_has_one_answer(client, method, path, answer):
    target = path.replace("{id}", "1")
    response = await client.call(method, target, None if method == "GET" else {})
    assert (response.status, response.json) == (200, {"ok": True, **answer})
    client.secret_key = "another-secret"
    assert (await client.call(method, target)).errors == [("invalid_api_key", None)]
