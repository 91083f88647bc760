"""Fixed sequences: each field of each table at least once, valid, invalid and left out.

Random sequences (``sequences``) rarely use some rows of tables. These use every row; each has a tag, so that
those that most likely reveal a mutant of a module run first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.proof.sequences import (
    AT_THE_SERVICE,
    ONE_B,
    ONE_P,
    ONE_R,
    WHOLE_OBJECT,
    B,
    Body,
    P,
    ProofRequest,
    R,
)

Sequence = tuple[str, list[ProofRequest]]

METHODS = f"{ONE_R}/payout-methods"
ADDRESS = {
    "street1": "1 Main Street", "street2": "Floor 2", "city": "New York", "postalCode": "10001",
    "country": "US", "region": "NY", "phone": "+15550147963",
}  # fmt: skip
PERSON: Body = {
    "type": "individual", "firstName": "Ada", "lastName": "King", "email": "ada@example.com",
    "referenceId": "r-77", "language": "fr", "currency": "EUR", "dob": "1990-12-10",
    "passport": "X1234567", "ssn": "900000001", "address": ADDRESS,
}  # fmt: skip
FIRM: Body = {"type": "business", "name": "Acme", "email": "acme@example.com", "address": ADDRESS}
IBANS = {
    "AD": "AD1200012030200359100100", "AE": "AE070331234567890123456", "BE": "BE68539007547034",
    "DE": "DE89370400440532013000", "FR": "FR1420041010050500013M02606",
    "GB": "GB29NWBK60161331926819", "BR": "BR9700360305000010009795493P1",
    "CR": "CR05015202001026284066", "KZ": "KZ86125KZT5004100100",
}  # fmt: skip


def get(path: str) -> ProofRequest:
    return ProofRequest("GET", path)


def post(path: str, body: Any = None, object_indexes: tuple[int, int] = (0, 0)) -> ProofRequest:
    return ProofRequest("POST", path, body, object_indexes)


def patch(path: str, body: Any, object_indexes: tuple[int, int] = (0, 0)) -> ProofRequest:
    return ProofRequest("PATCH", path, body, object_indexes)


def delete(path: str, body: Any = None, object_indexes: tuple[int, int] = (0, 0)) -> ProofRequest:
    return ProofRequest("DELETE", path, body, object_indexes)


def event(description: str) -> ProofRequest:
    return ProofRequest(AT_THE_SERVICE, description)


def wallet(address: str = "ada@wallet.example.com") -> Body:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": address}},
    }


def bank(country: str | None, currency: str | None = "USD", /, **fields: Any) -> Body:
    """A payout by bank transfer; a field of None is left out."""
    all_fields = {"country": country, "currency": currency, "name": "Ada King", **fields}
    given_fields = {name: value for name, value in all_fields.items() if value is not None}
    return {"primary": {"method": "bank", "currency": currency}, "accounts": {"bank": given_fields}}


US_BANK = bank(
    "US", accountNum="1234567", routing="021000021", bankAddress="1 Wall Street",
    bankCity="New York", bankProvince="NY", bankPostalCode="10005", swiftBic="BOFAUS3N",
)  # fmt: skip
CA_BANK = bank("CA", "CAD", accountNum="1234567", institution="003", branchNum="12345")
DE_BANK = bank("DE", "EUR", iban=IBANS["DE"], swiftBic="COBADEFFXXX")


def drop_field(body: Body, name: str) -> Body:
    return {key: value for key, value in body.items() if key != name}


def with_recipient_reads(*requests: ProofRequest) -> list[ProofRequest]:
    """The requests, followed by reads of the recipient, alone and in the list."""
    return [*requests, get(ONE_R), get(METHODS), get(R)]


# Recipients


def recipients() -> Iterator[Sequence]:
    yield (
        "recipients",
        [post(R, PERSON), *with_recipient_reads(), get(f"{ONE_R}/logs"), get(f"{ONE_R}/payments")],
    )
    yield (
        "recipients",
        [post(R, FIRM), *with_recipient_reads(), patch(ONE_R, {"name": "Acme Two"}), get(ONE_R)],
    )
    minimal = {name: PERSON[name] for name in ("type", "firstName", "lastName", "email")}
    changes: Body = {
        "firstName": "Grace", "lastName": "Hopper", "email": "grace@example.com",
        "referenceId": "r-78", "language": "de", "currency": "GBP", "dob": "1991-11-11",
        "passport": "Y7654321", "ssn": "900000002", "primaryCurrency": "CAD",
    }  # fmt: skip
    yield (
        "recipients",
        [
            post(R, minimal),
            get(ONE_R),
            *(
                request
                for name, value in changes.items()
                for request in (patch(ONE_R, {name: value}), get(ONE_R))
            ),
        ],
    )
    yield (
        "recipients",
        [
            post(R, minimal),
            *(
                request
                for name, value in ADDRESS.items()
                for request in (patch(ONE_R, {"address": {name: value}}), get(ONE_R))
            ),
            patch(ONE_R, {"address": {"street2": ""}}),
            get(ONE_R),
            patch(ONE_R, {"address": {"country": "GB", "city": "Leeds"}}),
            get(ONE_R),
            patch(ONE_R, {"type": "business", "name": "Ada Ltd"}),
            get(ONE_R),
        ],
    )
    yield (
        "recipients",
        [
            post(R, {**PERSON, "payout": US_BANK}),
            *(
                request
                for word in ("inactive", "disabled", "suspended", "active", "disabled", "inactive")
                for request in (
                    patch(ONE_R, {"status": word}),
                    get(ONE_R),
                    get(f"{R}?status={word}"),
                )
            ),
            patch(ONE_R, {"status": "incomplete"}),
            patch(ONE_R, {"status": "nonsense"}),
            patch(ONE_R, {"status": "archived"}),
            get(ONE_R),
            event("status {recipient} suspended"),
            get(ONE_R),
            event("status {recipient} active"),
            get(ONE_R),
            event("status {recipient} incomplete"),
            get(ONE_R),
            patch(ONE_R, {"firstName": "Bea"}),
            get(ONE_R),
        ],
    )
    yield "recipients", [
        post(R, {**PERSON, "payout": wallet()}),
        *(
            request
            for word in ("review", "verified", "blocked", "pending")
            for request in (
                event(f"compliance {{recipient}} {word}"), get(ONE_R), get(R),
                get(f"{R}?complianceStatus={word}"),
            )
        ),
    ]  # fmt: skip
    yield (
        "recipients",
        [
            post(R, PERSON),
            post(R, {**minimal, "email": "bea@example.com", "firstName": "Bea"}),
            post(R, FIRM),
            delete(ONE_R),
            get(ONE_R),
            patch(ONE_R, {"firstName": "Nobody"}),
            delete(ONE_R),
            get(f"{ONE_R}/logs"),
            get(f"{ONE_R}/payments"),
            get(METHODS),
            post(METHODS, wallet()),
            get(R),
            delete(R, {"ids": []}),
            delete(R, {}),
            delete(R, {"ids": ["R-NOBODY"]}),
            delete(R, {"ids": "R-NOBODY"}),
            delete(R, {"ids": ["{recipient}"]}, (1, 0)),
            delete(R, {"ids": ["{recipient}", "{recipient}"]}, (2, 0)),
            get(R),
            get(f"{R}/R-NOBODY"),
            delete(f"{R}/R-NOBODY"),
        ],
    )


def _service_events() -> Iterator[Sequence]:
    """Events at the service: in the dashboard, or through the current interface."""
    yield (
        "recipients",
        [
            post(R, {**PERSON, "payout": US_BANK}),
            event("ssn {recipient} 123456789"),
            *with_recipient_reads(),
            event(
                "account {recipient} bank-transfer country=DE accountHolderName=Bea iban=DE89370400440532013000"
            ),
            *with_recipient_reads(),
            event("account {recipient} wallet emailAddress=one@example.com"),
            event("account {recipient} wallet emailAddress=two@example.com"),
            event("account {recipient} mobile-wallet phoneNumber=+15550147963"),
            *with_recipient_reads(),
            patch(METHODS, {"primary": {"method": "wallet", "currency": "USD"}}),
            *with_recipient_reads(),
            post(METHODS, wallet("three@example.com")),
            *with_recipient_reads(),
            event("status {recipient} archived"),
            *with_recipient_reads(),
            patch(ONE_R, {"firstName": "Nobody"}),
            delete(ONE_R),
        ],
    )
    yield (
        "recipients",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD", "description": "May", "payments": [pay("11.00")]}),
            event("logged {recipient} {batch}"),
            get(f"{ONE_R}/logs"),
            delete(ONE_R),
            event("unarchived {recipient}"),
            *with_recipient_reads(),
            patch(ONE_R, {"firstName": "Nobody"}),
            post(R, {**FIRM, "referenceId": "r-79"}),
            delete(R, {"ids": ["{recipient}"]}),
            event("unarchived {recipient}"),
            *with_recipient_reads(),
            delete(R, {"ids": ["{recipient}"]}),
        ],
    )
    yield (
        "batches",
        [
            *create_payees(),
            *(post(B, {"sourceCurrency": "USD", "payments": [pay("11.00")]}) for _ in range(3)),
            get("/payments"),
            event("gone"),
            get("/payments"),
            get(ONE_B),
            get(ONE_P),
        ],
    )
    yield (
        "recipients",
        [
            post(R, drop_field(PERSON, "ssn")),
            event("account {recipient} mobile-wallet phoneNumber=+15550147963"),
            *with_recipient_reads(),
            patch(METHODS, {"primary": {"method": "mobile-wallet"}}),
            post(METHODS, US_BANK),
            *with_recipient_reads(),
        ],
    )
    yield "recipients", [
        *(
            post(R, {**PERSON, "payout": {"primary": {"method": "bank", "currency": "EUR"},
                                          "accounts": {"bank": bank_fields}}})
            for bank_fields in (
                {**US_BANK["accounts"]["bank"], "currency": "GBP"},
                drop_field(US_BANK["accounts"]["bank"], "currency"),
            )
        ),
        get(METHODS),
        get(R),
        patch(METHODS, {"primary": {"currency": "CAD"}}),
        get(METHODS),
        patch(METHODS, {"primary": {"method": "bank", "currency": "USD"}, "accounts": {"bank": {}}}),
        get(METHODS),
    ]  # fmt: skip
    yield (
        "batches",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD", "payments": [pay("3.00")]}),
            post(f"{ONE_B}/start-processing"),
            event("compliance {recipient} review"),
            get(ONE_P),
            delete(ONE_R),
            get(ONE_P),
            *ALL_OF_BATCH,
            event("finish"),
            *ALL_OF_BATCH,
        ],
    )


def _wrong_recipients() -> Iterator[Sequence]:
    invalid_values: dict[str, tuple[Any, ...]] = {
        "type": ("company", 5, None, "", []),
        "firstName": (None, "", [], {}, 5, True),
        "lastName": (None, "", [], {}),
        "name": ([], {}, None, True),
        "email": ("", None, "nobody", "a b@c.de", 5, [], "a@b"),
        "referenceId": ([], {}, None, 77, True),
        "language": ([], "english", None, "pt-BR"),
        "currency": ("EURO", 5, [], None, "eur", {"code": "USD"}),
        "dob": ("10.12.1990", "1990-13-01", 5, None),
        "passport": ([], None, 77),
        "ssn": ("900-00-0001", "12345678", None, 900000001, "****01"),
        "address": ("Main Street", [], None),
        "payout": ("wallet", [], None, {}),
    }
    yield (
        "recipients",
        [
            post(R, {}),
            *(
                post(R, drop_field(PERSON, name))
                for name in ("type", "firstName", "lastName", "email")
            ),
            post(R, drop_field(FIRM, "name")),
            post(R, []),
            *(
                post(R, {**PERSON, name: value})
                for name, values in invalid_values.items()
                for value in values
            ),
        ],
    )
    yield (
        "recipients",
        [
            # Together with another error: both are reported.
            *(
                post(R, {**PERSON, "referenceId": [], name: value})
                for name, values in invalid_values.items()
                if name != "referenceId"
                for value in values
                # Only the service can detect that some are no address or no language.
                if value not in ("a@b", "english")
            ),
            post(R, {**PERSON, "id": "R-OWN"}),
            patch(ONE_R, {"id": "{recipient}", "createdAt": "long ago", "firstName": "Echo"}),
            get(ONE_R),
        ],
    )
    yield (
        "recipients",
        [
            post(R, PERSON),
            *(
                request
                for name, values in invalid_values.items()
                for value in values
                for request in (patch(ONE_R, {name: value}),)
            ),
            get(ONE_R),
        ],
    )
    places: dict[str, tuple[Any, ...]] = {
        "street1": ([], "PO Box 5", 5), "street2": ([], None), "city": ({}, None, 5),
        "region": ([], None), "postalCode": ([], 10001), "country": ("USA", "XX", "us", 5, ""),
        "phone": ("none", [], 15550147963),
    }  # fmt: skip
    yield (
        "recipients",
        [
            *(
                post(R, {**PERSON, "address": {**ADDRESS, name: value}})
                for name, values in places.items()
                for value in values
            ),
            *(post(R, {**PERSON, "address": drop_field(ADDRESS, name)}) for name in ADDRESS),
            get(f"{R}?pageSize=50"),
        ],
    )


ORDERS = (
    "status", "country", "city", "name", "email", "id", "complianceStatus", "createdAt", "updatedAt",
    "referenceId", "type", "firstName", "lastName", "language", "dob", "payoutMethod",
    "payoutCurrency", "primaryCurrency", "nonsense",
)  # fmt: skip


def _lists() -> Iterator[Sequence]:
    recipient_bodies = [
        post(R, {**PERSON, "payout": US_BANK}),
        post(R, {**FIRM, "address": {**ADDRESS, "city": "Albany", "country": "CA"}}),
        post(
            R,
            {
                **PERSON,
                "firstName": "Zoë",
                "email": "zoe@example.com",
                "payout": wallet(),
                "address": {**ADDRESS, "city": "Zurich"},
            },
        ),
        patch(ONE_R, {"status": "inactive"}),
        event("people 30 5"),
    ]
    order_queries = [
        get(f"{R}?orderBy={name}&sortBy={direction}&pageSize=40")
        for name in ORDERS
        for direction in ("asc", "desc")
    ]
    middle = len(order_queries) // 2
    yield "lists", [recipient_bodies[-1], *order_queries[:middle]]
    yield "lists", [recipient_bodies[-1], *order_queries[middle:]]
    yield "lists", [
        *recipient_bodies,
        *(
            get(f"{R}?{query}&pageSize=50")
            for query in (
                "search=ada", "search=ACME", "search=zo", "search=example.org", "search=r-7",
                "status=active", "status=incomplete", "status=suspended", "status=inactive",
                "status=disabled", "status=archived", "complianceStatus=pending",
                "complianceStatus=verified", "complianceStatus=blocked", "complianceStatus=review",
                "country=US", "country=de", "country=USA", "country=ZZ", "city=albany",
                "city=new%20york", "payoutMethod=wallet", "payoutMethod=bank-transfer",
                "payoutMethod=check", "payoutMethod=nonsense", "payoutCurrency=USD",
                "payoutCurrency=eur", "payoutCurrency=nonsense",
                "payoutMethod=bank-transfer&payoutCurrency=EUR",
                "payoutMethod=wallet&payoutCurrency=USD", "startDate=2023-01-01",
                "endDate=2023-01-01", "startDate=2022-06-01&endDate=2023-06-01",
                "startDate=2022-06-01T10:00:00Z", "endDate=2023-06-01T10:00:00%2B02:00",
                "startDate=nonsense", "startDate=2022-08-08T19:36:49.813Z", "endDate=2022-08-08T19:36:49.813Z", "status=active&country=US&search=e",
                "sortBy=asc", "sortBy=up", "name=ada", "unknown=1", "search=",
            )
        ),
    ]  # fmt: skip
    pages = (
        "page=1&pageSize=7", "page=2&pageSize=7", "page=5&pageSize=7", "page=6&pageSize=7",
        "page=99", "page=0", "page=-1", "page=abc", "pageSize=0", "pageSize=abc", "pageSize=1",
        "page=2", "page=&pageSize=", "page=4&pageSize=10",
    )  # fmt: skip
    yield (
        "lists",
        [
            *recipient_bodies,
            *(get(f"{R}?{page}") for page in pages),
            *(get(f"{R}?{page}&search=e&orderBy=city&sortBy=asc") for page in pages),
        ],
    )
    yield (
        "lists",
        [
            *recipient_bodies,
            event("paid {recipient}"),
            *(get(f"{ONE_R}/payments?{page}") for page in pages),
            *(get(f"{ONE_R}/logs?{page}") for page in ("page=1&pageSize=1", "page=2&pageSize=1")),
        ],
    )


# Payout methods


def _payouts() -> Iterator[Sequence]:
    for payout in (US_BANK, CA_BANK, DE_BANK, wallet()):
        yield (
            "payouts",
            [
                post(R, PERSON),
                get(METHODS),
                post(METHODS, payout),
                *with_recipient_reads(),
                post(R, {**PERSON, "email": "two@example.com", "payout": payout}),
                *with_recipient_reads(),
            ],
        )
    fields = {
        "name": "Grace Hopper", "accountNum": "7654321", "routing": "026009593",
        "bankAddress": "2 Wall Street", "bankCity": "Albany", "bankProvince": "NJ",
        "bankPostalCode": "12201", "swiftBic": "CHASUS33", "currency": "EUR",
        "bankRegion": "CA",
    }  # fmt: skip
    yield "payouts", [
        post(R, {**PERSON, "payout": US_BANK}),
        *(
            request
            for name, value in fields.items()
            for request in (
                patch(METHODS, {"primary": {"method": "bank"}, "accounts": {"bank": {name: value}}}),
                get(METHODS),
            )
        ),
        patch(ONE_R, {"payout": {"accounts": {"bank": {"accountNum": "5555555"}}}}),
        get(METHODS),
        patch(METHODS, {"accounts": {"bank": {"accountNum": "****55"}}}),
        patch(METHODS, {"accounts": {"bank": {"country": "MX", "accountNum": "****55"}}}),
        patch(METHODS, {"accounts": {"bank": {"accountNum": "****99"}}}),
        patch(METHODS, {"accounts": {"bank": {"institution": "Some Bank", "branch": "1"}}}),
        get(METHODS),
    ]  # fmt: skip
    both = {**US_BANK, "accounts": {**US_BANK["accounts"], **wallet()["accounts"]}}
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": both}),
            *with_recipient_reads(),
            patch(METHODS, {"primary": {"method": "wallet", "currency": "USD"}}),
            *with_recipient_reads(),
            patch(METHODS, {"primary": {"method": "bank", "currency": "USD"}}),
            *with_recipient_reads(),
            patch(METHODS, wallet("new@wallet.example.com")),
            *with_recipient_reads(),
            post(METHODS, US_BANK),
            *with_recipient_reads(),
            patch(METHODS, DE_BANK),
            *with_recipient_reads(),
            patch(ONE_R, {"payout": CA_BANK}),
            *with_recipient_reads(),
            post(METHODS, {**both, "primary": {"method": "wallet", "currency": "USD"}}),
            *with_recipient_reads(),
        ],
    )
    hold: Body = {"limit": 500, "active": True}
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": {**wallet(), "autoswitch": hold}}),
            *with_recipient_reads(),
            patch(METHODS, {"holdup": {"limit": 5, "active": "False"}}),
            *with_recipient_reads(),
            patch(ONE_R, {"payout": {"holdup": {"active": True}, "autoswitch": {"limit": 7}}}),
            *with_recipient_reads(),
            patch(METHODS, {"holdup": {"limit": "many"}}),
            patch(METHODS, {"autoswitch": {"active": "maybe"}}),
            post(METHODS, {**wallet(), "holdup": {"limit": 1, "active": False}}),
            *with_recipient_reads(),
        ],
    )
    yield "payouts", [
        post(R, PERSON),
        *(
            post(METHODS, body)
            for body in (
                {}, {"primary": {}}, {"primary": {"method": "bank"}}, {"primary": {"method": "cash"}},
                {"primary": {"method": "check", "currency": "USD"}},
                {"accounts": {}}, {"primary": {"method": "wallet"}, "accounts": {"wallet": {}}},
                {"accounts": {"wallet": {"address": "w@example.com"}}},
                {"primary": {"method": "bank"}, "accounts": {"bank": {}}},
                {"primary": {"method": "bank"}, "accounts": {"bank": None}},
                {"primary": {"method": "wallet"}, "accounts": {"bank": {"country": "US"}}},
                wallet(""), wallet("nobody"), wallet(None),  # type: ignore[arg-type]
                {"primary": "bank"}, {"accounts": "bank"}, {"accounts": {"bank": "x"}},
            )
        ),
        get(METHODS),
        patch(METHODS, {}),
        patch(METHODS, {"primary": {"method": "bank"}}),
        patch(METHODS, {"primary": {"method": "wallet"}}),
        get(METHODS),
    ]  # fmt: skip
    yield "payouts", [
        post(R, PERSON),
        *(
            post(METHODS, bank("US", **{"accountNum": "1234567", "routing": "021000021", **invalid_value}))
            for invalid_value in (
                {"routing": "12345678"}, {"routing": "1234567890"}, {"routing": None},
                {"routing": "02100002x"}, {"accountNum": None}, {"swiftBic": "BOFAUS3"},
                {"swiftBic": "BOFAUS3NXX"}, {"swiftBic": "12345678"}, {"country": None},
                {"country": "XX"}, {"currency": None}, {"currency": "DOLLAR"}, {"name": None},
                {"accountNum": IBANS["DE"]}, {"iban": IBANS["DE"]}, {"governmentId": "900000009"},
                {"governmentId": "12"}, {"accountNum": "****99"},
                {"accountNum": "****67"}, {"routing": "****99"},
                {"branchNum": "12345"},
            )
        ),
        get(METHODS),
        get(ONE_R),
    ]  # fmt: skip
    yield "payouts", [
        post(R, PERSON),
        *(
            post(METHODS, bank("US", **{"accountNum": "1234567", "routing": "021000021", name: invalid_value}))
            for name in (*US_BANK["accounts"]["bank"], "branch", "iban", "governmentId",
                         "bankRegion")
            for invalid_value in ([], True, 5)
        ),
        get(METHODS),
    ]  # fmt: skip
    yield "payouts", [
        post(R, PERSON),
        *(
            post(METHODS, bank("CA", "CAD", **{"accountNum": "1234567", "institution": "003",
                                               "branchNum": "12345", **invalid_value}))
            for invalid_value in (
                {"institution": None}, {"institution": "03"}, {"institution": "0003"},
                {"branchNum": None}, {"branchNum": "1234"}, {"branchNum": "123456"},
                {"institution": "00x"}, {"routing": "12345"}, {},
            )
        ),
        get(METHODS),
    ]  # fmt: skip


EITHER = {"AU": "062000", "GB": "601613", "NZ": "010902", "IN": "SBIN0000001"}


def _countries() -> Iterator[Sequence]:
    for country, branch in EITHER.items():
        fields = {"accountNum": "12345678", "branchNum": branch}
        yield "banks", [
            post(R, PERSON),
            *(
                request
                for invalid_fields in (
                    {"branchNum": None}, {"branchNum": branch[1:]}, {"branchNum": f"{branch}1"},
                    {"branchNum": None, "routing": branch}, {"branchNum": None, "routing": "1"},
                    {"routing": branch}, {"branchNum": "abcdef"},
                    {"accountNum": None}, {},
                )
                for request in (post(METHODS, bank(country, "GBP", **{**fields, **invalid_fields})),)
            ),
            get(METHODS),
            patch(METHODS, {"accounts": {"bank": {"routing": branch}}}),
            get(METHODS),
        ]  # fmt: skip
    yield (
        "banks",
        [
            post(R, PERSON),
            post(METHODS, bank("GB", "GBP", iban=IBANS["GB"])),
            get(METHODS),
            post(METHODS, bank("GB", "GBP", iban=IBANS["GB"], accountNum="31926819")),
            get(METHODS),
            post(METHODS, bank("GB", "GBP", iban="GB29NWBK60161331926818")),
            post(METHODS, bank("GB", "GBP", accountNum="31926819")),
        ],
    )
    yield (
        "banks",
        [
            post(R, PERSON),
            *(
                post(METHODS, bank(country, "EUR", **fields))
                for country in SEPA
                for fields in ({"accountNum": "12345678"},)
            ),
            *(
                post(METHODS, bank(country, "EUR", iban=IBANS[country]))
                for country in ("AD", "BE", "DE", "FR", "AE")
            ),
            get(METHODS),
            post(METHODS, bank("DE", "EUR", iban=f"{IBANS['DE'][:-1]}1")),
            post(METHODS, bank("DE", "EUR", iban="de89 3704 0044 0532 0130 00")),
            get(METHODS),
            post(METHODS, bank("DE", "EUR", iban=IBANS["FR"])),
            post(METHODS, bank("DE", "EUR", iban=IBANS["DE"], accountNum="532013000")),
            get(METHODS),
            post(METHODS, bank("MX", "MXN", accountNum="032180000118359719")),
            get(METHODS),
            post(METHODS, bank("AO", "USD", accountNum="12345678")),
            post(METHODS, bank("JP", "JPY", accountNum="1234567")),
            get(METHODS),
        ],
    )
    for country, (min_length, max_length) in IDS.items():
        fields = {"accountNum": "12345678", "iban": IBANS.get(country)}
        values = [
            None,
            "1" * (min_length - 1),
            "1" * (max_length + 1),
            "1" * min_length,
            "1" * max_length,
            "x" * min_length,
        ]
        values += ["1" * (min_length - 1) + "K", f"{'1' * (min_length - 1)}-1"]
        yield (
            "banks",
            [
                post(R, PERSON if country != "KZ" else drop_field(PERSON, "ssn")),
                post(R, drop_field(PERSON, "ssn")),
                *(
                    request
                    for value in values
                    for request in (
                        post(METHODS, bank(country, "USD", governmentId=value, **fields)),
                        get(METHODS),
                    )
                ),
                get(ONE_R),
            ],
        )
    yield "banks", [
        post(R, {**FIRM, "currency": "GBP"}),
        *(
            post(METHODS, bank(country, "USD", accountNum="12345678", governmentId=value, iban=IBANS.get(country)))
            for country, digits in (("AR", 11), ("BR", 14), ("CL", 0), ("CO", 0))
            for value in (None, "1" * (digits - 1), "1" * digits, "1" * (digits + 1))
        ),
        get(METHODS),
        post(METHODS, {**wallet(), "primary": {"method": "wallet", "currency": "EUR"}}),
        get(METHODS),
    ]  # fmt: skip


SEPA = [
    "AD",
    "AT",
    "BE",
    "BG",
    "CH",
    "CY",
    "CZ",
    "DE",
    "DK",
    "EE",
    "ES",
    "FI",
    "FR",
    "GR",
    "HR",
    "HU",
    "IE",
    "IS",
    "IT",
    "LI",
    "LT",
    "LU",
    "LV",
    "MC",
    "MT",
    "NL",
    "NO",
    "PL",
    "PT",
    "RO",
    "SE",
    "SI",
    "SK",
    "SM",
    "VA",
]
IDS = {
    "AR": (11, 11), "AZ": (10, 10), "BR": (11, 11), "CL": (9, 9), "CO": (10, 10), "CR": (9, 12),
    "GT": (8, 12), "KZ": (12, 12), "PY": (6, 11),
}  # fmt: skip


def _several_wrong() -> Iterator[Sequence]:
    """The gateway reports all errors that it detects itself, together with all others."""
    valid_fields: dict[str, Body] = {
        "US": {"accountNum": "1234567", "routing": "021000021", "governmentId": "900000009"},
        "CA": {"accountNum": "1234567", "institution": "003", "branchNum": "12345"},
        **{
            country_code: {"accountNum": "12345678", "branchNum": branch}
            for country_code, branch in EITHER.items()
        },
    }
    for country, fields in valid_fields.items():
        yield "faults", [
            post(R, PERSON),
            *(
                post(METHODS, bank(country, "USD", **{**fields, name: invalid_value, "swiftBic": "1"}))
                for name in ("routing", "branchNum", "institution", "governmentId")
                if name in fields
                for invalid_value in (None, fields[name][1:], f"{fields[name]}1", fields[name])
            ),
        ]  # fmt: skip
    for start in range(0, len(SEPA), 9):
        yield (
            "faults",
            [
                post(R, PERSON),
                *(
                    post(METHODS, bank(country_code, "EUR", accountNum="1234567", swiftBic="1"))
                    for country_code in SEPA[start : start + 9]
                ),
            ],
        )
    yield "faults", [
        post(R, PERSON),
        *(post(METHODS, bank(country_code, "EUR", swiftBic="1")) for country_code in ("US", "DE", "CR", "MX")),
    ]  # fmt: skip
    for body, ids in ((drop_field(PERSON, "ssn"), IDS), (FIRM, BUSINESS_IDS)):
        yield "faults", [
            post(R, body),
            *(
                post(METHODS, bank(country, "USD", governmentId=value, accountNum="12345678",
                                   iban=(IBANS | MORE_IBANS).get(country), swiftBic="1"))
                for country, (min_length, max_length) in ids.items()
                for value in (None, "1" * (min_length - 1), "1" * (max_length + 1), "1" * min_length, "1" * max_length,
                              "1" * (min_length - 1) + "K")
            ),
        ]  # fmt: skip


MORE_IBANS = {"AZ": "AZ21NABZ00000000137010001944", "GT": "GT82TRAJ01020000001210029690"}
BUSINESS_IDS = {"AR": (11, 11), "BR": (14, 14), "CL": (9, 9), "CO": (10, 10)}


# Batches and payments


def pay(amount: Any = "10.00", *, recipient: Any = None, **fields: Any) -> Body:
    return {"recipient": recipient or {"id": "{recipient}"}, "sourceAmount": amount, **fields}


def target(amount: Any, currency: Any, **fields: Any) -> Body:
    return {
        "recipient": {"id": "{recipient}"}, "targetAmount": amount, "targetCurrency": currency, **fields
    }  # fmt: skip


def create_payees() -> list[ProofRequest]:
    """By bank in US dollars, by wallet, and by bank in euros; the last is the nearest."""
    return [
        post(R, {**PERSON, "payout": US_BANK}),
        post(R, {**PERSON, "email": "w@example.com", "firstName": "Wal", "payout": wallet()}),
        post(R, {**PERSON, "email": "d@example.com", "firstName": "Dee", "payout": DE_BANK,
                 "address": {**ADDRESS, "country": "DE", "city": "Bonn"}}),
    ]  # fmt: skip


ALL_OF_BATCH = [get(ONE_B), get(f"{ONE_B}/summary"), get(P), get(B)]


def three(**fields: Any) -> Body:
    """Payments of other amounts to the same; who is paid is picked for the whole request."""
    return {
        "sourceCurrency": "USD",
        "description": "May",
        "payments": [pay("10.00", memo="one"), pay("7", memo="two"), target("5.05", "EUR")],
        **fields,
    }


def _batches() -> Iterator[Sequence]:
    for pick in range(3):
        yield "batches", [
            *create_payees(),
            event("wallet USD 5000.00"),
            post(B, three(), (pick, 0)),
            *ALL_OF_BATCH,
            get(ONE_P),
            ProofRequest("GET", ONE_P, object_indexes=(1, 0)),
            ProofRequest("GET", ONE_P, object_indexes=(2, 0)),
            post(f"{ONE_B}/generate-quote"),
            *ALL_OF_BATCH,
            post(f"{ONE_B}/start-processing"),
            *ALL_OF_BATCH,
            get(ONE_P),
            post(f"{ONE_B}/start-processing"),
            post(f"{ONE_B}/generate-quote"),
            patch(ONE_B, {"payments": [pay()]}),
            patch(ONE_P, {"sourceAmount": "1.00"}),
            delete(ONE_P),
            post(P, pay()),
            delete(ONE_B),
            delete(B, {"ids": ["{batch}"]}),
            event("finish"),
            *ALL_OF_BATCH,
            get(ONE_P),
            *(
                ProofRequest("GET", f"{ONE_R}/payments", object_indexes=(index, 0))
                for index in range(3)
            ),
        ]  # fmt: skip
    for word in ("failed", "returned"):
        yield (
            "batches",
            [
                *create_payees(),
                post(B, {"sourceCurrency": "USD", "payments": [pay("3.00")]}),
                event(f"outcome {{recipient}} {word}"),
                post(f"{ONE_B}/start-processing"),
                event("finish"),
                *ALL_OF_BATCH,
                get(ONE_P),
                get(f"{ONE_R}/payments"),
            ],
        )
    yield "batches", [
        *create_payees(),
        post(B, three()),
        patch(ONE_B, {"update_payments": [{"id": "{payment}", "sourceAmount": "99.99"}]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"update_payments": [{"id": "{payment}", "memo": "new"}]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"update_payments": [{"id": "{payment}", "targetAmount": "8.00",
                                           "targetCurrency": "GBP"}]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"payments": [pay("4.00", memo="more"), target("3.00", "CAD")]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"payments": [{"id": "{payment}", "sourceAmount": "12.00"}, pay("6.00")]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"remove_payments": [{"id": "{payment}"}]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"remove_payments": [{"id": "{payment}"}]}),
        patch(ONE_B, {}),
        get(ONE_B),
    ]  # fmt: skip
    yield "batches", [
        *create_payees(),
        post(B, three()),
        *(
            request
            for description in ("June", "", None, [], "July")
            for request in (patch(ONE_B, {"description": description}), *ALL_OF_BATCH)
        ),
        patch(ONE_B, {"sourceCurrency": "EUR"}),
        patch(ONE_B, {"sourceCurrency": "usd", "payments": [{"id": "{payment}", "memo": None}]}),
        *ALL_OF_BATCH,
        patch(ONE_P, {"memo": None}),
        patch(ONE_P, {"memo": ""}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"description": "August", "payments": [pay("4.00")]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"description": None}),
        *ALL_OF_BATCH,
        post(f"{ONE_B}/start-processing"),
        patch(ONE_B, {"description": "late"}),
        get(ONE_B),
    ]  # fmt: skip
    yield "batches", [
        *create_payees(),
        post(B, {"sourceCurrency": "USD"}),
        patch(ONE_B, {"sourceCurrency": "NOPE"}),
        patch(ONE_B, {"sourceCurrency": "EUR"}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"sourceCurrency": "CAD", "description": "May", "payments": [pay("5.00")]}),
        *ALL_OF_BATCH,
        patch(ONE_B, {"sourceCurrency": "USD"}),
        post(f"{ONE_B}/start-processing"),
        *ALL_OF_BATCH,
    ]  # fmt: skip
    yield (
        "batches",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD"}),
            *ALL_OF_BATCH,
            post(f"{ONE_B}/start-processing"),
            post(P, pay("2.50", memo="first")),
            get(ONE_P),
            post(P, target("4.00", "EUR", memo="second")),
            get(ONE_P),
            post(P, pay("1", recipient={"email": "w@example.com"})),
            get(ONE_P),
            *ALL_OF_BATCH,
            patch(ONE_P, {"sourceAmount": "3.33"}),
            get(ONE_P),
            patch(ONE_P, {"memo": "third"}),
            get(ONE_P),
            patch(ONE_P, {"targetAmount": "9.00", "targetCurrency": "cad"}),
            get(ONE_P),
            patch(ONE_P, {"targetAmount": "9.00", "targetCurrency": "USD"}),
            get(ONE_P),
            patch(ONE_P, {"memo": "in dollars"}),
            *ALL_OF_BATCH,
            patch(ONE_P, {"targetAmount": "9.00"}),
            patch(ONE_P, {"sourceAmount": "1.00", "targetAmount": "2.00", "targetCurrency": "EUR"}),
            patch(ONE_P, {}),
            *ALL_OF_BATCH,
            delete(ONE_P),
            get(ONE_P),
            delete(ONE_P),
            *ALL_OF_BATCH,
            get(f"{ONE_B}/payments/P-NOBODY"),
            patch(f"{ONE_B}/payments/P-NOBODY", {"memo": "x"}),
            delete(f"{ONE_B}/payments/P-NOBODY"),
        ],
    )
    yield "batches", [
        *create_payees(),
        post(B, three(sourceCurrency="EUR")),
        *ALL_OF_BATCH,
        get(ONE_P),
        post(B, {"payments": [pay("1.00", sourceCurrency="GBP"), pay("2.00", sourceCurrency="GBP")]}),
        *ALL_OF_BATCH,
        post(B, {"sourceCurrency": "CAD", "payments": [target("1234.56", "CAD"), target("1", "USD")]}),
        *ALL_OF_BATCH,
        get(ONE_P),
        event("balance CAD 5.00"),
        *ALL_OF_BATCH,
        post(f"{ONE_B}/start-processing"),
        post(P, pay("1.00", sourceCurrency="CAD")),
        post(P, pay("1.00", sourceCurrency="USD")),
        post(P, pay("1.00", recipient={"email": "nobody@example.com"})),
        delete(ONE_B),
        get(ONE_B),
        delete(ONE_B),
        *(
            ProofRequest(method, path.replace("{batch}", "B-NOBODY"), body)
            for method, path, body in (
                ("GET", ONE_B, None), ("GET", f"{ONE_B}/summary", None), ("GET", P, None),
                ("POST", f"{ONE_B}/generate-quote", None), ("PATCH", ONE_B, {"payments": []}),
                ("POST", f"{ONE_B}/start-processing", None), ("POST", P, pay()),
                ("DELETE", ONE_B, None),
            )
        ),
        get(B),
        delete(B, {"ids": ["B-NOBODY"]}),
        delete(B, {"ids": []}),
        delete(B, {}),
        delete(B, {"ids": ["{batch}"]}, (0, 1)),
        get(B),
    ]  # fmt: skip
    yield (
        "batches",
        [
            *create_payees(),
            event("status {recipient} suspended"),
            post(B, {"sourceCurrency": "USD", "payments": [pay()]}),
            post(B, {"sourceCurrency": "USD", "payments": [pay()]}, (1, 0)),
            patch(ONE_R, {"status": "disabled"}, (1, 0)),
            post(P, pay(), (1, 0)),
            post(f"{ONE_B}/start-processing"),
            patch(ONE_R, {"status": "inactive"}, (1, 0)),
            post(P, pay("2.00"), (1, 0)),
            *ALL_OF_BATCH,
            event("balance USD 1.00"),
            *ALL_OF_BATCH,
            post(f"{ONE_B}/start-processing"),
            event("balance USD 500.00"),
            post(f"{ONE_B}/start-processing"),
            get(ONE_B),
        ],
    )


def _refusals() -> Iterator[Sequence]:
    """Each code of section 7, from the service or from the gateway itself."""
    codes = (
        "invalid_status", "invalid_field", "empty_field", "expired_quote", "invalid_api_key",
        "not_authorized", "not_found", "rate_limit_exceeded", "internal_server_error",
    )  # fmt: skip
    yield (
        "errors",
        [
            post(R, PERSON),
            *(request for code in codes for request in (event(f"refuses {code}"), get(ONE_R))),
            get(ONE_R),
            ProofRequest("GET", R, key="none"),
            ProofRequest("GET", R, key="wrong"),
            ProofRequest("POST", B, {}, key="wrong"),
        ],
    )
    yield (
        "errors",
        [
            *create_payees(),
            post(B, three()),
            post(f"{ONE_B}/generate-quote"),
            event("expire"),
            post(f"{ONE_B}/start-processing"),
            get(ONE_B),
            post(f"{ONE_B}/generate-quote"),
            post(f"{ONE_B}/start-processing"),
            *ALL_OF_BATCH,
        ],
    )


def _long_run() -> Iterator[Sequence]:
    """What random sequences have found to differ, once."""
    empty_wallet = {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": None}}}
    no_city: Body = {"accounts": {"bank": {"bankCity": None, "swiftBic": None}}}
    for_wallet = {"payout": {"accounts": {"wallet": {"address": None}}}}
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": wallet()}),
            patch(METHODS, empty_wallet),
            patch(ONE_R, for_wallet),
            *with_recipient_reads(),
            post(METHODS, US_BANK),
            patch(METHODS, no_city),
            *with_recipient_reads(),
        ],
    )
    unfilled_payout: Body = {
        "primary": {"method": "", "currency": ""},
        "accounts": {"bank": {"country": "", "iban": None}, "wallet": {"address": ""}},
    }
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": unfilled_payout}),
            post(METHODS, unfilled_payout),
            patch(METHODS, unfilled_payout),
            *with_recipient_reads(),
            post(METHODS, US_BANK),
            patch(METHODS, unfilled_payout),
            patch(ONE_R, {"payout": unfilled_payout}),
            *with_recipient_reads(),
        ],
    )
    nameless_payout = {
        **US_BANK,
        "accounts": {"bank": drop_field(US_BANK["accounts"]["bank"], "name")},
    }
    yield (
        "payouts",
        [
            *(
                post(R, drop_field({**PERSON, "payout": nameless_payout}, name))
                for name in ("type", "email")
            ),
            post(R, {**FIRM, "name": "", "payout": nameless_payout}),
            post(R, {**FIRM, "name": [], "payout": nameless_payout}),
        ],
    )
    yield (
        "batches",
        [
            *create_payees(),
            post(B, three()),
            get(ONE_B),
            patch(METHODS, CA_BANK),
            patch(ONE_P, {"memo": ""}),
            get(ONE_P),
            patch(ONE_P, {"memo": "more"}),
            get(ONE_P),
            patch(ONE_B, {"update_payments": [{"id": "{payment}"}]}),
            get(ONE_P),
            patch(ONE_B, {"update_payments": [{"id": "{payment}", "memo": "less"}]}),
            get(ONE_P),
            patch(ONE_P, {"sourceAmount": "10.00"}),
            get(ONE_P),
        ],
    )
    yield from _more_of_the_long_run()
    too_little = pay("0.01", recipient={"email": "ada@example.com"})
    yield (
        "batches",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD", "payments": [too_little]}),
            post(B, {"sourceCurrency": "USD", "payments": [pay("1e3"), too_little]}),
            post(B, {"sourceCurrency": "USD", "payments": [pay("1e3"), pay("x"), too_little]}),
            post(B, {"sourceCurrency": "USD"}),
            post(P, {**too_little, "memo": []}),
            post(P, too_little),
            get(ONE_B),
        ],
    )


def _more_of_the_long_run() -> Iterator[Sequence]:
    in_pounds = {**wallet(), "primary": {"method": "wallet", "currency": "GBP"}}
    primary_alone: Body = {"primary": {"method": "wallet", "currency": "CAD"}}
    yield (
        "payouts",
        [
            post(R, {**drop_field(PERSON, "currency"), "payout": in_pounds}),
            *with_recipient_reads(),
            post(R, {**FIRM, "email": "one@example.com"}),
            post(METHODS, in_pounds),
            *with_recipient_reads(),
            patch(METHODS, primary_alone),
            *with_recipient_reads(),
            post(METHODS, US_BANK),
            patch(ONE_R, {"currency": "EUR", "payout": in_pounds}),
            *with_recipient_reads(),
            post(R, {**FIRM, "email": "two@example.com"}),
            patch(METHODS, {**in_pounds, "accounts": {**in_pounds["accounts"], **DE_BANK["accounts"]}}),
            *with_recipient_reads(),
        ],
    )  # fmt: skip
    us: Body = US_BANK["accounts"]["bank"]
    other_id = {"accounts": {"bank": {**us, "governmentId": "900000002"}}}
    same_id = {"accounts": {"bank": {**us, "governmentId": "900000001"}}}
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": other_id}),
            post(R, {**PERSON, "ssn": "900-00-0001", "payout": other_id}),
            post(R, {**PERSON, "ssn": "****01", "payout": other_id}),
            post(R, {**PERSON, "payout": same_id}),
            *with_recipient_reads(),
            patch(ONE_R, {"ssn": "900000003", "payout": other_id}),
            patch(ONE_R, {"ssn": "****01", "payout": other_id}),
            *with_recipient_reads(),
        ],
    )
    nameless_payout = {"accounts": {"bank": drop_field(CA_BANK["accounts"]["bank"], "name")}}
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": US_BANK}),
            patch(ONE_R, {"firstName": "Bea", "payout": nameless_payout}),
            *with_recipient_reads(),
            patch(ONE_R, {"type": "business", "name": "Acme", "payout": DE_BANK}),
            *with_recipient_reads(),
        ],
    )
    brazil = bank("BR", "BRL", iban=IBANS["BR"], accountNum="12345678", governmentId="12345678901")
    nowhere = bank("XX", "USD", accountNum="12345678", governmentId="900000009")
    yield (
        "recipients",
        [
            post(R, {**drop_field(PERSON, "ssn"), "currency": "USD"}),
            get(f"{R}?payoutCurrency=USD"),
            get(f"{R}?orderBy=payoutCurrency"),
            patch(ONE_R, {"ssn": "900000002", "payout": brazil}),
            *with_recipient_reads(),
            patch(ONE_R, {"ssn": "900000003", "payout": brazil}),
            *with_recipient_reads(),
            patch(ONE_R, {"ssn": "900000004"}),
            patch(ONE_R, {"ssn": "****99", "email": "x"}),
            patch(METHODS, nowhere),
            patch(ONE_R, {"firstName": None, "passport": "****99"}),
            patch(ONE_R, {"lastName": "", "referenceId": []}),
            patch(
                METHODS,
                bank("CA", "CAD", accountNum="1234567", institution="****67", branchNum="1"),
            ),
            post(METHODS, bank("MX", "MXN", accountNum="****99", swiftBic="****67")),
            post(METHODS, bank(None, "MXN", accountNum="1234567", swiftBic="1")),
            patch(METHODS, bank("XX", "USD", accountNum="****67", swiftBic="1")),
            patch(ONE_R, {"status": "inactive", WHOLE_OBJECT: True}),
            *with_recipient_reads(),
            post(R, {**drop_field(PERSON, "address"), "email": "bea@example.com"}),
            get(ONE_R),
            patch(ONE_R, {"status": "inactive", WHOLE_OBJECT: True}),
            *with_recipient_reads(),
            patch(ONE_R, {"status": "disabled", "payout": {"holdup": {"limit": 5}}}),
            *with_recipient_reads(),
            post(R, drop_field(PERSON, "ssn")),
            patch(ONE_R, {"status": "inactive", "ssn": "900000005"}),
            *with_recipient_reads(),
            patch(ONE_R, {"status": "inactive", "payout": US_BANK}),
            *with_recipient_reads(),
        ],
    )
    foreign_bank = bank("GB", "GBP", accountNum="12345678", iban=IBANS["BR"], branchNum="601613")
    yield (
        "payouts",
        [
            post(R, {**PERSON, "payout": bank("DE", "EUR", iban=IBANS["DE"])}),
            post(METHODS, foreign_bank),
            post(METHODS, {**foreign_bank, "primary": {"method": "bank", "currency": "x"}}),
            patch(ONE_R, {"currency": "CAD", "primaryCurrency": "x"}),
            patch(ONE_R, {"currency": "x", "primaryCurrency": "CAD"}),
            get(ONE_R),
            # An account number that was only shown masked counts as a change if it is sent again.
            patch(ONE_R, {"status": "active", "primaryCurrency": "GBP"}),
            patch(METHODS, bank("DE", "EUR", iban=IBANS["DE"])),
            *with_recipient_reads(),
        ],
    )
    yield (
        "payouts",
        [
            post(R, {**drop_field(PERSON, "ssn"), "payout": brazil}),
            get(ONE_R),
            post(METHODS, bank("", "USD", accountNum="****67", governmentId="900000009")),
            post(METHODS, bank("", "BRL", accountNum="****78", governmentId="900000009")),
            patch(ONE_R, {"ssn": "900000001", WHOLE_OBJECT: True}),
            post(METHODS, US_BANK),
            patch(ONE_R, {"lastName": "Byron", WHOLE_OBJECT: True}),
            patch(METHODS, {**brazil, "accounts": {"bank": {
                **brazil["accounts"]["bank"], "governmentId": "****01"}}}),
            *(patch(ONE_R, {"ssn": ssn, "payout": other_id}) for ssn in ("900000003", "****11")),
            *with_recipient_reads(),
        ],
    )  # fmt: skip
    wrong_ones: tuple[Body, ...] = (
        {"sourceAmount": "1e3"},
        {"targetAmount": "1.00"},
        {"memo": "x"},
    )
    currencies = [pay(sourceCurrency="USD"), pay(sourceCurrency="EUR"), pay("1e3")]
    yield (
        "batches",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD"}),
            *(
                patch(
                    ONE_B, {"payments": [{"id": "P-NOBODY", **invalid_body}, pay(recipient=nobody)]}
                )
                for invalid_body in wrong_ones
                for nobody in ({"id": "R-NOBODY"}, {"id": "{recipient}"})
            ),
            post(B, {"sourceCurrency": "x", "payments": currencies}),
        ],
    )
    both = {
        "primary": {"method": "bank", "currency": "x"},
        "accounts": {"bank": {**us, "currency": 5}},
    }
    yield (
        "payouts",
        [
            post(R, PERSON),
            post(METHODS, both),
            post(METHODS, {**both, "primary": {"method": "bank"}}),
            post(METHODS, {**both, "accounts": {"bank": drop_field(us, "currency")}}),
            post(METHODS, {**wallet(), "primary": {"method": "wallet", "currency": "x"}}),
            post(R, {**PERSON, "payout": both}),
            patch(METHODS, both),
        ],
    )


def _funds() -> Iterator[Sequence]:
    """Just enough and a cent too little, of what pays by bank and of what pays to wallets."""
    for pick in (0, 1):
        yield (
            "batches",
            [
                *create_payees(),
                event("wallet USD 0.00"),
                post(
                    B,
                    {"sourceCurrency": "USD", "payments": [pay("10.00"), pay("20.00")]},
                    (pick + 1, 0),
                ),
                *(
                    request
                    for cents in FUNDS
                    for request in (
                        event(f"balance USD {cents}"),
                        get(f"{ONE_B}/summary"),
                        get(ONE_B),
                    )
                ),
                event("balance USD 1000.00"),
                *(
                    request
                    for cents in FUNDS
                    for request in (event(f"wallet USD {cents}"), get(ONE_B), get(B))
                ),
            ],
        )


FUNDS = ("29.99", "30.00", "31.99", "32.00")


def _wrong_batches() -> Iterator[Sequence]:
    amounts = ("0", "-1", "1.005", "1.5", "abc", "", None, True, "1e3", [], "1,00", "0.00", 5, 7.5,
               "1 000", "+5", "1000000000000.00", "00.01", "1_0", "\u0661")  # fmt: skip
    yield (
        "amounts",
        [
            *create_payees(),
            *(post(B, {"sourceCurrency": "USD", "payments": [pay(amount)]}) for amount in amounts),
            get(f"{B}?pageSize=30"),
        ],
    )
    yield (
        "amounts",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD"}),
            *(post(P, pay(amount)) for amount in amounts),
            *(post(P, target(amount, "EUR")) for amount in amounts),
            *ALL_OF_BATCH,
            *(patch(ONE_P, {"sourceAmount": amount}) for amount in amounts),
            *ALL_OF_BATCH,
        ],
    )
    rows: tuple[Any, ...] = (
        {}, {"sourceAmount": "1.00"}, {"recipient": {"id": "{recipient}"}},
        {"recipient": {}, "sourceAmount": "1.00"}, {"recipient": "x", "sourceAmount": "1.00"},
        pay("1.00", recipient={"id": "R-NOBODY"}), pay("1.00", recipient={"id": "B-NOBODY"}),
        pay("1.00", recipient={"id": ""}), pay("1.00", recipient={"email": "nobody@example.com"}),
        pay("1.00", recipient={"email": "no address"}), pay("1.00", recipient={"email": 5}),
        pay("1.00", recipient={"email": "w@example.com"}), target("1.00", None), target("1.00", ""),
        target("1.00", "EURO"), target("1.00", "XXX"), pay("1.00", targetAmount="1.00"),
        pay("1.00", targetAmount="1.00", targetCurrency="EUR"), pay("1.00", memo=[]),
        pay("1.00", memo=5), pay("1.00", memo=""), pay("1.00", sourceCurrency="EUR"),
        pay("1.00", sourceCurrency="usd"), pay("1.00", sourceCurrency="DOLLAR"), "x", [], None,
    )  # fmt: skip
    yield (
        "batches",
        [
            *create_payees(),
            *(post(B, {"sourceCurrency": "USD", "payments": [pay("1.00"), row]}) for row in rows),
            get(f"{B}?pageSize=30"),
        ],
    )
    yield "batches", [
        *create_payees(),
        *(
            post(B, body)
            for body in (
                {}, [], {"payments": []}, {"sourceCurrency": "USD", "payments": "x"},
                {"sourceCurrency": "usd"}, {"sourceCurrency": "DOLLAR"}, {"sourceCurrency": 5},
                {"sourceCurrency": None, "payments": [pay("1.00")]}, {"description": "x"},
                {"sourceCurrency": "USD", "description": []}, {"sourceCurrency": ""},
                {"sourceCurrency": "USD", "description": None, "payments": None},
                {"payments": [pay("1.00", sourceCurrency="GBP"), pay("1.00", sourceCurrency="USD")]},
            )
        ),
        post(B, three()),
        *(
            patch(ONE_B, body)
            for body in (
                {"update_payments": [{"sourceAmount": "1.00"}]}, {"update_payments": [{"id": ""}]},
                {"update_payments": [{"id": "P-NOBODY", "sourceAmount": "1.00"}]},
                {"update_payments": [{"id": "{payment}", "sourceAmount": "0"}]},
                {"update_payments": [{"id": "{payment}", "sourceAmount": "1.00",
                                      "targetAmount": "1.00", "targetCurrency": "EUR"}]},
                {"update_payments": [{"id": "{payment}", "targetAmount": "1.00"}]},
                {"update_payments": "x"}, {"remove_payments": [{}]}, {"remove_payments": "x"},
                {"remove_payments": [{"id": "P-NOBODY"}]},
                {"remove_payments": [{"id": "{payment}"}, {"id": "{payment}"}]},
                {"update_payments": [{"id": "{payment}", "memo": "x"}],
                 "remove_payments": [{"id": "{payment}"}]},
                {"payments": [pay("1.00", sourceCurrency="EUR")]}, {"payments": [{}]},
                {"remove_payments": [{"id": "{payment}", "sourceAmount": "none"}]},
            )
        ),
        *ALL_OF_BATCH,
    ]  # fmt: skip


def _edited_batches() -> Iterator[Sequence]:
    """Lists with batches that were edited, and batches that were not."""
    yield (
        "batches",
        [
            *create_payees(),
            post(B, {"sourceCurrency": "USD", "payments": [pay("11.00")]}),
            get(ONE_B),
            patch(ONE_B, {"update_payments": [{"id": "{payment}", "sourceAmount": "12.00"}]}),
            post(f"{ONE_B}/generate-quote"),
            post(B, {"sourceCurrency": "USD", "payments": [pay("13.00")]}),
            get(f"{ONE_R}/payments"),
            get(f"{ONE_R}/payments?page=2&pageSize=1"),
            *ALL_OF_BATCH,
        ],
    )


def _batch_lists() -> Iterator[Sequence]:
    pages = (
        "", "?page=1&pageSize=2", "?page=2&pageSize=2", "?page=3&pageSize=2", "?page=4&pageSize=2",
        "?page=0", "?page=abc", "?pageSize=0", "?page=99", "?pageSize=3",
    )  # fmt: skip
    many_batches = [post(B, {"sourceCurrency": "USD", "description": f"n{n}",
                        "payments": [pay(f"{n}.00"), pay(f"{n}.05")]}) for n in range(1, 6)]  # fmt: skip
    yield (
        "pages",
        [
            *create_payees(),
            *many_batches,
            *(get(f"{B}{page}") for page in pages),
            get(f"{B}?search=B-"),
            get(f"{B}?search=nobody"),
            get(f"{B}?search={{batch}}"),
            post(f"{ONE_B}/start-processing"),
            get(B),
            delete(ONE_B, object_indexes=(0, 1)),
            get(B),
            get(f"{B}?page=2&pageSize=3"),
        ],
    )
    yield (
        "pages",
        [
            *create_payees(),
            *many_batches,
            event("elsewhere 205"),
            *(get(f"{B}{page}") for page in ("", "?page=2", "?page=21&pageSize=10", "?page=22")),
            *(get(f"{B}?pageSize={size}&page=2") for size in (100, 150, 209)),
            get(f"{B}?search={{batch}}"),
            delete(ONE_B),
            get(f"{B}?page=21"),
        ],
    )
    yield "pages", [
        *create_payees(),
        post(B, {"sourceCurrency": "USD", "payments": [
            pay(f"{10 + n}.00", memo=f"memo {n}", recipient={"email": mail})
            for n, mail in enumerate(("ada@example.com", "w@example.com", "d@example.com",
                                      "w@example.com", "ada@example.com", "d@example.com",
                                      "w@example.com"), start=1)
        ]}),
        *ALL_OF_BATCH,
        *(get(f"{P}{page}") for page in pages),
        # With a character that no id has: three letters are in one of many ids by chance.
        *(
            get(f"{P}?search={word}")
            for word in ("ada%20", "ADA@EXAMPLE", "Wal%20", "memo%204", "r-77", "{payment}", "nobody", "")
        ),
        get(f"{P}?search=w@example.com&page=2&pageSize=2"),
        get(f"{ONE_R}/payments"),
        get(f"{ONE_R}/payments?page=2&pageSize=1"),
        *(
            get(f"{path}?{query}")
            for path in (B, "/payments", f"{ONE_R}/payments")
            for query in (
                "status=open", "status=pending", "status=complete", "status=accepted",
                "status=processed", "status=nonsense", "sourceCurrency=USD", "sourceCurrency=eur",
                "targetCurrency=USD", "targetCurrency=CAD", "country=US", "country=deu",
                "country=ZZ", "recipient={recipient}", "recipient=W@example.com",
                "recipient=R-NOBODY", "startDate=2020-01-01", "endDate=2020-01-01",
                "startDate=soon", "status=pending&country=US&search=memo%20",
                "recipient={recipient}&pageSize=1&page=2", "unknown=1&status=",
            )
        ),
        get("/payments"),
        get("/payments?page=2&pageSize=3"),
        get("/payments?search=dee%20"),
        get("/payments/{payment}"),
        get("/payments/P-NOBODY"),
        post(f"{ONE_B}/start-processing"),
        event("finish"),
        *ALL_OF_BATCH,
        get("/payments"),
    ]  # fmt: skip

    def batches(count: int) -> Iterator[ProofRequest]:
        for number in range(count):
            yield post(
                B, {"sourceCurrency": "USD", "payments": [pay(f"1{number}.00"), pay("9.00")]}
            )
            yield post(f"{ONE_B}/start-processing")

    # What is complete is counted when it is first read, and read again only for what a page shows of it.
    newest_pages = [
        get(f"/payments?pageSize={size}&page={page}") for size, page in _PAGES_OF_NEWEST
    ]
    yield (
        "newest",
        [
            *create_payees(),
            *batches(3),
            post(
                B, {"sourceCurrency": "USD", "payments": [pay("21.00"), pay("22.00"), pay("23.00")]}
            ),
            *batches(11),
            *newest_pages[:2],
            event("finish"),
            *newest_pages,
            *newest_pages,
            *batches(1),
            *newest_pages,
            get("/payments?search=ada%20&pageSize=3"),
            get("/payments?search=ada%20&pageSize=3&page=11"),
            *newest_pages[:2],
        ],
    )


_PAGES_OF_NEWEST = (
    (1, 1), (1, 2), (1, 20), (1, 33), (1, 34), (2, 1), (2, 12), (3, 1), (3, 9), (16, 1), (16, 2), (40, 1),
)  # fmt: skip


# All fields


def _every_field() -> list[ProofRequest]:
    """Each operation, with all fields of its response that the legacy document lists."""
    both = {**US_BANK, "accounts": {**US_BANK["accounts"], **wallet()["accounts"]}}
    return [
        post(R, {**PERSON, "payout": both}),
        post(METHODS, both),
        patch(METHODS, both),
        patch(ONE_R, {"language": "de"}),
        *with_recipient_reads(),
        get(f"{ONE_R}/logs"),
        post(B, {"sourceCurrency": "USD", "description": "May", "payments": [pay("11.00")]}),
        post(P, pay("12.00")),
        patch(ONE_P, {"memo": "new"}),
        get(ONE_P),
        get("/payments/{payment}"),
        get("/payments"),
        get(f"{ONE_R}/payments"),
        *ALL_OF_BATCH,
        post(f"{ONE_B}/generate-quote"),
        patch(ONE_B, {"payments": [pay("13.00")]}),
        delete(ONE_P),
        post(f"{ONE_B}/start-processing"),
        *ALL_OF_BATCH,
        *(post(B, {"sourceCurrency": "USD"}) for _ in range(2)),
        delete(ONE_B),
        delete(B, {"ids": ["{batch}"]}, (0, 1)),
        event("wallet USD 12.50"),
        *(get(f"/profile/balances{path_suffix}") for path_suffix in ("", "/service", "/wallet")),
        ProofRequest("GET", "/geography/countries/US", key="none"),
        post(R, FIRM),
        delete(ONE_R),
        delete(R, {"ids": ["{recipient}"]}, (1, 0)),
    ]


EVERY_FIELD = _every_field()


# Balances, geography and refused keys


def _other_sequences() -> Iterator[Sequence]:
    balances = [
        get(f"/profile/balances{path_suffix}") for path_suffix in ("", "/service", "/wallet")
    ]
    yield (
        "balances",
        [
            *balances,
            event("wallet USD 12.50"),
            event("balance EUR 0.05"),
            event("balance JPY 1000.00"),
            *balances,
            event("wallet EUR 0.00"),
            *balances,
        ],
    )
    codes = [
        f"{first_letter}{second_letter}" for first_letter in _LETTERS for second_letter in _LETTERS
    ]
    yield (
        "geography",
        [
            *(get(f"/geography/countries/{code}") for code in codes if code in _REQUESTED),
            *(get(f"/geography/countries/{code}") for code in ("us", "USA", "D", "xx", "ZZ")),
        ],
    )


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_REQUESTED = frozenset(
    [
        "US",
        "CA",
        "GB",
        "DE",
        "FR",
        "BR",
        "AR",
        "IN",
        "AU",
        "NZ",
        "JP",
        "CH",
        "KZ",
        "AO",
        "BQ",
        "XK",
        "CD",
        "CU",
        "IR",
        "IQ",
        "CI",
        "KP",
        "LB",
        "LR",
        "LY",
        "MM",
        "SO",
        "SD",
        "SY",
        "VE",
        "YE",
        "ZR",
        "ZW",
        "AQ",
        "HM",
        "VA",
        "MF",
        "SX",
    ]
)


@cache
def coverage() -> tuple[Sequence, ...]:
    return (
        *recipients(), *_service_events(), *_wrong_recipients(), *_lists(), *_payouts(), *_countries(),
        *_several_wrong(), *_batches(), *_long_run(), *_funds(), *_refusals(), *_wrong_batches(), *_edited_batches(),
        *_batch_lists(), *_other_sequences(), ("every field", EVERY_FIELD),
    )  # fmt: skip
