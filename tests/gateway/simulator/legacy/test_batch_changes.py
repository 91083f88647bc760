"""Changes of a batch on the legacy interface."""


async def test_unsupported_currency_is_refused_if_payments_are_added(legacy_client, payee):
    batch = await legacy_client.request_ok("POST", "/batches", {"sourceCurrency": "USD"})
    body = {
        "sourceCurrency": "XXX",
        "payments": [{"recipient": {"id": payee["id"]}, "sourceAmount": "1"}],
    }
    assert await legacy_client.request_refused(
        "PATCH", f"/batches/{batch['batch']['id']}", body
    ) == (406, [("invalid_field", "sourceCurrency")])
