"""Validation of accounts (current interface, sections 2.6 and 4.2)."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.simulator import values
from gateway.simulator.countries import (
    BANK_ID,
    BRANCH_ID,
    IBAN_LENGTH,
    government_id_digits,
    needs_iban,
)
from gateway.simulator.iban import valid_iban
from gateway.simulator.refusals import Problems
from gateway.simulator.rules import is_country
from gateway.simulator.switches import Switches
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject

BANK = "bank-transfer"
CHECK = "check"
MOBILE_WALLET = "mobile-wallet"

BANK_FIELDS = (
    "country",
    "accountHolderName",
    "accountNum",
    "iban",
    "swiftBic",
    "bankId",
    "branchId",
    "bankAddress",
    "bankCity",
    "bankRegion",
    "bankPostalCode",
)
MAILING = ("name", "street1", "street2", "city", "region", "country", "postal")

ACCOUNT_NUMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9 -]{2,33}")
SWIFT_BIC = re.compile(r"[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?")
BANK_PART = re.compile(r"[A-Za-z0-9-]{1,20}")


def read_account(
    problems: Problems,
    kind: str,
    body: Mapping[str, Any],
    before: JsonObject,
    switches: Switches,
) -> JsonObject:
    """Merge a request into an account's previous fields and check them; ignores unknown fields."""
    names, check = _KINDS.get(kind, (("emailAddress",), _check_wallet))
    sent = {name: body[name] for name in ("currency", *names) if name in body}
    if kind == MOBILE_WALLET and "phone" in body:  # Section 2.6 uses both names.
        sent["phoneNumber"] = body["phone"]
    after = {**before, **sent}
    if kind != BANK and blank(after.get("currency")):
        after["currency"] = before.get("currency")
    if not blank(after.get("currency")) and (wrong := values.currency(after["currency"])):
        problems.invalid("currency", wrong)
    check(problems, after, switches)
    return after


def lacks_government_id(recipient: JsonObject, account_country: str) -> bool:
    """Whether the recipient lacks the government id that section 2.4 requires in a country."""
    if government_id_digits(account_country, str(recipient.get("type"))) is None:
        return False
    return not any(
        entry.get("country") == account_country and entry.get("type") != "passport"
        for entry in recipient.get("governmentIds", [])
    )


def _require(problems: Problems, fields: JsonObject, *names: str) -> None:
    for name in names:
        if blank(fields.get(name)):
            problems.empty(name)


def _check_bank(problems: Problems, fields: JsonObject, switches: Switches) -> None:
    _require(problems, fields, "currency", "country", "accountHolderName")
    given = {name: value for name, value in fields.items() if not blank(value)}
    for name in BANK_FIELDS:
        if name in given and not isinstance(given[name], str):
            problems.invalid(name, "Must be a string")
            given[name] = ""  # One problem per field: the rules below ignore an empty text.
    country = given.get("country", "")
    if country and not is_country(country):
        problems.invalid("country", "Must be ISO 3166-1 alpha-2")
    _check_numbers(problems, given, country, switches)
    _check_bank_parts(problems, given, country)
    if country in switches.wire_countries:
        _require(problems, fields, "swiftBic", "bankAddress", "bankCity")
    if given.get("swiftBic") and not SWIFT_BIC.fullmatch(given["swiftBic"].upper()):
        problems.invalid("swiftBic", "Must have 8 or 11 characters")


def _check_numbers(problems: Problems, given: JsonObject, country: str, switches: Switches) -> None:
    if "accountNum" in given:
        if given["accountNum"] and (wrong := _account_number(given["accountNum"])):
            problems.invalid("accountNum", wrong)
    elif switches.account_number_with_iban == "required" or not (
        needs_iban(country) or (country in IBAN_LENGTH and "iban" in given)
    ):
        problems.empty("accountNum")
    if "iban" in given:
        if given["iban"] and (wrong := _iban(given["iban"])):
            problems.invalid("iban", wrong)
    elif needs_iban(country):
        problems.empty("iban")


def _account_number(value: str) -> str | None:
    if wrong := values.unmasked(value):
        return wrong
    if valid_iban(value):
        return "Must not be an IBAN"
    return None if ACCOUNT_NUMBER.fullmatch(value) else "Must be an account number"


def _iban(value: str) -> str | None:
    if wrong := values.unmasked(value):
        return wrong
    return None if valid_iban(value) else "Must be an IBAN"


def _check_bank_parts(problems: Problems, given: JsonObject, country: str) -> None:
    for name, required in (("bankId", BANK_ID), ("branchId", BRANCH_ID)):
        pattern = required.get(country)
        if name not in given:
            if pattern is not None:
                problems.empty(name)
        elif given[name] and not re.fullmatch(pattern or BANK_PART, given[name]):
            problems.invalid(name)


def _check_wallet(problems: Problems, fields: JsonObject, _: Switches) -> None:
    _require(problems, fields, "emailAddress")
    address = fields.get("emailAddress")
    if not blank(address) and (wrong := values.email(address)):
        problems.invalid("emailAddress", wrong)


def _check_mobile_wallet(problems: Problems, fields: JsonObject, _: Switches) -> None:
    _require(problems, fields, "phoneNumber")
    number = fields.get("phoneNumber")
    if not blank(number) and (wrong := values.phone(number)):
        problems.invalid("phoneNumber", wrong)


def _check_mailing(problems: Problems, fields: JsonObject, _: Switches) -> None:
    mailing = fields.get("mailing")
    if blank(mailing):
        problems.empty("mailing")
    elif isinstance(mailing, dict):
        _check_postal_address(problems.within("mailing."), mailing)
    else:
        problems.invalid("mailing", "Must be an object")


def _check_postal_address(inside: Problems, mailing: JsonObject) -> None:
    _require(inside, mailing, "name", "street1", "city", "region", "country", "postal")
    for name in MAILING:
        if not blank(mailing.get(name)) and (wrong := values.text(mailing[name])):
            inside.invalid(name, wrong)
    if not blank(mailing.get("country")) and mailing["country"] != "US":
        inside.invalid("country", "Must be US")
    postal = mailing.get("postal")
    if isinstance(postal, str) and postal and not re.fullmatch(r"[0-9]{5}(-[0-9]{4})?", postal):
        inside.invalid("postal", "Must have 5 or 5+4 digits")


_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Problems, JsonObject, Switches], None]]] = {
    BANK: (BANK_FIELDS, _check_bank),
    CHECK: (("mailing",), _check_mailing),
    MOBILE_WALLET: (("phoneNumber",), _check_mobile_wallet),
}
