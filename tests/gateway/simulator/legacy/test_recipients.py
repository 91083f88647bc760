"""Recipients on the legacy interface (sections 2, 3 and 4.1)."""

import re

import pytest

RECIPIENT_FIELDS = [
    "id", "referenceId", "email", "name", "firstName", "lastName", "type", "status",
    "complianceStatus", "compliance", "avatarUrl", "language", "dob", "passport", "ssn",
    "address", "payout", "payoutMethod", "primaryCurrency", "createdAt", "updatedAt",
]  # fmt: skip
RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Zoë",
    "lastName": "Peña",
    "email": "zoe@example.com",
}


async def test_recipient_has_documented_fields_in_order(legacy_client):
    recipient = await legacy_client.create_recipient(
        referenceId="ref-1",
        language="fr",
        currency="EUR",
        dob="1990-02-28",
        passport="X123",
        ssn="123456789",
        address={"street1": "Größe 1", "street2": "", "city": "Austin", "country": "USA"},
    )
    assert list(recipient) == RECIPIENT_FIELDS
    assert re.fullmatch(r"R-[A-Za-z0-9]{16}", recipient["id"])
    assert recipient["address"] == {
        "street1": "Größe 1", "street2": "", "city": "Austin", "region": None,
        "postalCode": None, "country": "US", "phone": None,
    }  # fmt: skip
    assert list(recipient["address"]) == [
        "street1", "street2", "city", "region", "postalCode", "country", "phone"
    ]  # fmt: skip
    assert (recipient["name"], recipient["language"], recipient["primaryCurrency"]) == (
        "Zoë Peña",
        "fr",
        "EUR",
    )
    assert (recipient["ssn"], recipient["dob"], recipient["passport"]) == (
        "****89",
        "1990-02-28",
        "X123",
    )
    assert (recipient["status"], recipient["payout"]) == ("incomplete", {"method": None})
    assert recipient["compliance"] == {"status": "pending", "checkedAt": None}
    assert recipient["createdAt"] == recipient["updatedAt"] == "2025-10-09T08:53:20.000Z"
    assert await legacy_client.read_recipient(recipient) == recipient


async def test_payout_method_may_be_created_with_recipient(legacy_client, payee):
    assert (payee["status"], payee["payoutMethod"]) == ("active", "bank-transfer")
    assert payee["payout"]["accounts"]["bank"]["accountNum"] == "****47"
    assert payee["primaryCurrency"] == "USD"
    assert legacy_client.service.creation_counts == {"recipient": 1, "account": 1}


async def test_wallet_requires_no_address(legacy_client, wallet_holder):
    assert (wallet_holder["status"], wallet_holder["payoutMethod"]) == ("active", "wallet")


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("empty_field", "type"), ("empty_field", "email")]),
        (
            {"type": "individual", "firstName": "", "email": ""},
            [
                ("empty_field", "firstName"),
                ("empty_field", "lastName"),
                ("empty_field", "email"),
            ],
        ),
        ({"type": "business", "email": "a@example.com"}, [("empty_field", "name")]),
        (
            RECIPIENT_BODY
            | {"email": "no", "dob": "1990", "language": "english", "currency": "euro"},
            [
                ("invalid_field", "email"),
                ("invalid_field", "dob"),
                ("invalid_field", "language"),
                ("invalid_field", "currency"),
            ],
        ),
        (
            RECIPIENT_BODY | {"address": {"street1": 7.5, "country": "XX"}, "ssn": "123-45-6789"},
            [
                ("invalid_field", "address.street1"),
                ("invalid_field", "address.country"),
                ("invalid_field", "ssn"),
            ],
        ),
        (RECIPIENT_BODY | {"address": "here"}, [("invalid_field", "address")]),
        (RECIPIENT_BODY | {"ssn": "12345"}, [("invalid_field", "ssn")]),
        (RECIPIENT_BODY | {"ssn": "****89"}, [("invalid_field", "ssn")]),
        (RECIPIENT_BODY | {"payout": "bank"}, [("invalid_field", "payout")]),
        (
            RECIPIENT_BODY
            | {
                "email": "no",
                "payout": {
                    "primary": {"method": "bank", "currency": "USD"},
                    "accounts": {"bank": {"country": "US"}},
                },
            },
            [
                ("invalid_field", "email"),
                ("empty_field", "payout.accounts.bank.accountNum"),
                ("empty_field", "payout.accounts.bank.routing"),
            ],
        ),
    ],
)
async def test_all_errors_are_listed_and_nothing_is_created(legacy_client, body, errors):
    assert await legacy_client.request_refused("POST", "/recipients", body) == (406, errors)
    assert legacy_client.service.creation_counts == {}


async def test_lenient_bodies_are_accepted(legacy_client):
    recipient = await legacy_client.create_recipient(
        referenceId="",
        dob=None,
        address=None,
        payout={"accounts": {"bank": None}, "autoswitch": {"active": "False"}},
        passport=1234567,
        language=None,
        currency="eur",
        avatar=7,
    )
    assert (recipient["referenceId"], recipient["payout"]) == (None, {"method": None})
    assert (recipient["passport"], recipient["primaryCurrency"]) == ("1234567", "EUR")
    assert await legacy_client.request_ok("PATCH", f"/recipients/{recipient['id']}", recipient)


async def test_only_sent_method_is_primary(legacy_client, wallet_payout, us_payout):
    recipient = await legacy_client.create_recipient(payout={"accounts": wallet_payout["accounts"]})
    assert recipient["payout"]["method"] == "wallet"
    del us_payout["primary"]["method"]
    us_payout["accounts"] |= wallet_payout["accounts"]
    body = {"type": "business", "name": "Acme", "email": "a@example.com", "payout": us_payout}
    expected = (406, [("empty_field", "payout.primary.method")])
    assert await legacy_client.request_refused("POST", "/recipients", body) == expected


async def test_change_is_answered_by_one_word(legacy_client, clock, payee):
    clock.now += 60
    body = {"firstName": "Ana", "address": {"city": "Dallas"}, "language": "es-MX"}
    path = f"/recipients/{payee['id']}"
    answer = await legacy_client.request("PATCH", path, body)
    assert answer.text == '{"ok":true,"object":"updated"}'
    changed_recipient = await legacy_client.read_recipient(payee)
    assert (changed_recipient["name"], changed_recipient["language"]) == ("Ana Peña", "es-MX")
    assert changed_recipient["address"]["street1"] == payee["address"]["street1"]
    assert (changed_recipient["createdAt"], changed_recipient["updatedAt"]) == (
        "2025-10-09T08:53:20.000Z",
        "2025-10-09T08:54:20.000Z",
    )


@pytest.mark.parametrize("body", [{}, {"unknown": 1}, "whole"])
async def test_no_op_change_keeps_update_date(legacy_client, clock, payee, body):
    clock.now += 60
    path = f"/recipients/{payee['id']}"
    await legacy_client.request_ok("PATCH", path, payee if body == "whole" else body)
    assert await legacy_client.read_recipient(payee) == payee


async def test_differing_fields_of_full_recipient_are_changed(legacy_client, clock, payee):
    clock.now += 60
    await legacy_client.request_ok(
        "PATCH", f"/recipients/{payee['id']}", {**payee, "currency": "GBP"}
    )
    changed_recipient = await legacy_client.read_recipient(payee)
    assert changed_recipient["primaryCurrency"] == "GBP"
    assert changed_recipient["updatedAt"] > payee["updatedAt"]


async def test_full_recipient_can_be_sent_back(legacy_client, payee):
    await legacy_client.request_ok("PATCH", f"/recipients/{payee['id']}", {"ssn": "123456789"})
    full_recipient = await legacy_client.read_recipient(payee)
    assert await legacy_client.request_ok(
        "PATCH", f"/recipients/{payee['id']}", full_recipient
    ) == {
        "ok": True,
        "object": "updated",
    }
    assert await legacy_client.read_recipient(payee) == full_recipient


async def test_refused_change_changes_nothing(legacy_client, payee):
    body = {"firstName": "Ana", "payout": {"accounts": {"bank": {"routing": "1"}}}}
    path = f"/recipients/{payee['id']}"
    expected = (406, [("invalid_field", "payout.accounts.bank.routing")])
    assert await legacy_client.request_refused("PATCH", path, body) == expected
    assert await legacy_client.read_recipient(payee) == payee
    status, errors = await legacy_client.request_refused(
        "PATCH", path, {"email": None, "type": "robot"}
    )
    assert (status, errors) == (406, [("empty_field", "email"), ("invalid_field", "type")])


async def test_payout_may_be_changed_with_recipient(legacy_client, payee, wallet_payout):
    await legacy_client.request_ok("PATCH", f"/recipients/{payee['id']}", {"payout": wallet_payout})
    changed_recipient = await legacy_client.read_recipient(payee)
    assert (changed_recipient["payout"]["method"], changed_recipient["payoutMethod"]) == (
        "wallet",
        "wallet",
    )
    assert set(changed_recipient["payout"]["accounts"]) == {"bank", "wallet"}


@pytest.mark.parametrize(
    ("status", "expected_current_status"),
    [
        ("active", "active"),
        ("inactive", "active"),
        ("disabled", "suspended"),
        ("suspended", "suspended"),
    ],
)
async def test_client_may_set_status(legacy_client, payee, status, expected_current_status):
    path = f"/recipients/{payee['id']}"
    await legacy_client.request_ok("PATCH", path, {"status": status})
    assert (await legacy_client.read_recipient(payee))["status"] == status
    assert (await legacy_client.client.read_recipient(payee))["status"] == expected_current_status


async def test_current_status_may_be_sent_again(legacy_client, payee):
    path = f"/recipients/{payee['id']}"
    await legacy_client.request_ok("PATCH", path, {"status": "inactive"})
    await legacy_client.request_ok("PATCH", path, {"status": "incomplete", "language": "de"})
    assert (await legacy_client.read_recipient(payee))["status"] == "inactive"
    await legacy_client.client.call("PATCH", f"/v1{path}", {"status": "suspended"})
    await legacy_client.request_ok("PATCH", path, {"status": "suspended"})
    assert (await legacy_client.read_recipient(payee))["status"] == "suspended"


@pytest.mark.parametrize("status", ["archived", "review", 7, ["active"]])
async def test_other_status_is_refused(legacy_client, payee, status):
    path = f"/recipients/{payee['id']}"
    expected = (406, [("invalid_field", "status")])
    assert await legacy_client.request_refused("PATCH", path, {"status": status}) == expected


async def test_government_id_of_another_country_is_kept(legacy_client, address):
    bank = {"country": "BR", "accountNum": "123456", "governmentId": "12345678901"}
    payout = {"primary": {"method": "bank", "currency": "BRL"}, "accounts": {"bank": bank}}
    recipient = await legacy_client.create_recipient(
        payout=payout, ssn="123456789", address=address
    )
    assert recipient["ssn"] == "****89"
    assert recipient["payout"]["accounts"]["bank"]["governmentId"] == "****01"
    path = f"/recipients/{recipient['id']}"
    assert await legacy_client.request_refused("PATCH", path, {"ssn": "987654321"}) == (
        406,
        [("invalid_field", "ssn")],
    )
    await legacy_client.request_ok("PATCH", path, {"ssn": "****89"})


@pytest.mark.parametrize(
    ("status", "legacy_word"), [("review", "pending"), ("verified", "verified")]
)
async def test_compliance_uses_legacy_words(legacy_client, payee, status, legacy_word):
    legacy_client.service.set_compliance(payee["id"], status)
    recipient = await legacy_client.read_recipient(payee)
    assert (recipient["complianceStatus"], recipient["compliance"]["status"]) == (
        legacy_word,
        legacy_word,
    )
    assert recipient["compliance"]["checkedAt"] == "2025-10-09T08:53:20.000Z"


async def test_deleted_recipient_is_gone(legacy_client, payee):
    path = f"/recipients/{payee['id']}"
    answer = await legacy_client.request("DELETE", path)
    assert answer.text == '{"ok":true,"object":"deleted"}'
    for method, suffix in [
        ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/logs"), ("GET", "/payments"),
        ("GET", "/payout-methods"), ("POST", "/payout-methods"), ("PATCH", "/payout-methods"),
    ]:  # fmt: skip
        body = {} if method in ("PATCH", "POST") else None
        assert await legacy_client.request_refused(method, path + suffix, body) == (
            404,
            [("not_found", None)],
        )
    assert (await legacy_client.request_ok("GET", "/recipients"))["recipients"] == []


async def test_recipients_are_deleted_all_or_none(legacy_client, payee, german_payee):
    ids = [payee["id"], german_payee["id"]]
    for invalid_ids in ([*ids, "R-unknown"], [*ids, 7], [*ids, None]):
        assert await legacy_client.request_refused(
            "DELETE", "/recipients", {"ids": invalid_ids}
        ) == (
            404,
            [("not_found", None)],
        )
    assert (await legacy_client.request_ok("GET", "/recipients"))["meta"]["records"] == 2
    body = {"ids": [*ids, ids[0]]}
    assert await legacy_client.request_ok("DELETE", "/recipients", body) == {
        "ok": True,
        "object": "deleted",
    }
    assert await legacy_client.request_refused("DELETE", "/recipients", {"ids": ids[:1]}) == (
        404,
        [("not_found", None)],
    )


@pytest.mark.parametrize(
    ("body", "code"), [({}, "empty_field"), ({"ids": []}, "empty_field"), ({"ids": "R-1"}, "invalid_field")]
)  # fmt: skip
async def test_ids_must_be_a_list(legacy_client, body, code):
    assert await legacy_client.request_refused("DELETE", "/recipients", body) == (
        406,
        [(code, "ids")],
    )


@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/logs"), ("GET", "/payments")]
)  # fmt: skip
async def test_unknown_recipient_is_404(legacy_client, method, suffix):
    path = f"/recipients/R-unknown{suffix}"
    body = {} if method == "PATCH" else None
    assert await legacy_client.request_refused(method, path, body) == (404, [("not_found", None)])


async def test_logs_contain_requests_and_answers(legacy_client, payee):
    path = f"/recipients/{payee['id']}"
    await legacy_client.request_ok("PATCH", path, {"language": "de"})
    body = await legacy_client.request_ok("GET", f"{path}/logs")
    assert body["meta"] == {"page": 1, "pages": 1, "records": 2}
    newest_activity = body["activities"][0]
    assert set(newest_activity) == {
        "ip", "url", "method", "headers", "request", "response", "code", "source", "testMode",
        "createdAt",
    }  # fmt: skip
    assert (newest_activity["method"], newest_activity["url"], newest_activity["code"]) == (
        "PATCH",
        f"/v1{path}",
        200,
    )
    assert newest_activity["headers"]["X-API-Key"] == "****"
    assert newest_activity["response"] == '{"ok":true,"object":"updated"}'


async def test_recipient_payments_have_full_recipient(legacy_client, payee, german_payee):
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "1.00"),
        legacy_client.build_payment(german_payee, "2.00"),
    )
    await legacy_client.create_batch(legacy_client.build_payment(payee, "3.00"))
    body = await legacy_client.request_ok(
        "GET", f"/recipients/{payee['id']}/payments?pageSize=1&page=2"
    )
    assert body["meta"] == {"page": 2, "pages": 2, "records": 2}
    (payment,) = body["payments"]
    assert (payment["sourceAmount"], payment["batch"]["id"]) == ("1.00", batch["id"])
    assert payment["recipient"] == payee


async def test_earlier_payments_are_listed(legacy_client, payee):
    (seeded_payment,) = legacy_client.service.seed_payments(payee["id"], 1)
    body = await legacy_client.request_ok("GET", f"/recipients/{payee['id']}/payments")
    (listed_payment,) = body["payments"]
    assert list(listed_payment)[:3] == ["id", "recipient", "status"]
    assert (listed_payment["id"], listed_payment["sourceAmount"]) == (
        seeded_payment["id"],
        seeded_payment["sourceAmount"],
    )
    assert re.fullmatch(r"B-[A-Z0-9]{16}", listed_payment["batch"]["id"])
    body_by_id = await legacy_client.request_ok("GET", f"/payments/{seeded_payment['id']}")
    assert body_by_id["payment"] == listed_payment
