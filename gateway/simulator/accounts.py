"""Accounts: their validation and changes (current interface, sections 2.6 and 4.2)."""

import re

from gateway.simulator import validation
from gateway.simulator.countries import (
    BANK_ID_PATTERNS,
    BRANCH_ID_PATTERNS,
    IBAN_COUNTRIES,
    WIRE_COUNTRIES,
    find_country_problem,
    find_government_id_digit_range,
    is_iban_required,
    is_valid_iban,
)
from gateway.simulator.state import Account, Recipient, Tenant
from gateway.simulator.validation import Check, JsonObject, Problems, is_blank

BANK_TRANSFER = "bank-transfer"
CHECK = "check"
MOBILE_WALLET = "mobile-wallet"

BANK_FIELDS = (
    "country", "accountHolderName", "accountNum", "iban", "swiftBic", "bankId", "branchId",
    "bankAddress", "bankCity", "bankRegion", "bankPostalCode",
)  # fmt: skip

ACCOUNT_NUMBER_PATTERN = "[A-Za-z0-9][A-Za-z0-9 -]{2,33}"
SWIFT_BIC_PATTERN = "(?ai)[A-Z]{6}[A-Z0-9]{2}([A-Z0-9]{3})?"
BANK_ID_PATTERN = "[A-Za-z0-9-]{1,20}"


def merge_and_check_account_fields(
    tenant: Tenant,
    problems: Problems,
    recipient_fields: JsonObject,
    account: Account,
    body: JsonObject,
) -> JsonObject:
    """Merges a request into an account's fields and checks them; ignores unknown fields."""
    account_type, previous_fields = account.type, account.fields
    own_field, find_problem = OWN_FIELDS.get(account_type, WALLET_FIELD)
    field_names = BANK_FIELDS if account_type == BANK_TRANSFER else (own_field,)
    sent_fields = {name: body[name] for name in ("currency", *field_names) if name in body}
    if account_type == MOBILE_WALLET and "phone" in body:  # Section 2.6 uses both names.
        sent_fields["phoneNumber"] = body["phone"]
    # Checked as a whole: a change of the country makes other fields required.
    merged_fields = {**previous_fields, **sent_fields}
    if account_type != BANK_TRANSFER and is_blank(merged_fields.get("currency")):
        merged_fields["currency"] = previous_fields.get("currency")
    if not is_blank(merged_fields.get("currency")):
        problems.check("currency", merged_fields["currency"], validation.find_currency_problem)
    if account_type == BANK_TRANSFER:
        _check_bank_account(problems, merged_fields)
        is_checked = tenant.options.missing_government_id == "refused"
        country = str(merged_fields.get("country"))
        if is_checked and is_government_id_missing(recipient_fields, country):
            problems.add_empty_field("governmentIds")
    else:
        problems.check_required(own_field, merged_fields.get(own_field), find_problem)
    if not isinstance(body.get("primary", False), bool):
        problems.add_invalid_field("primary", "Must be a boolean")
    return merged_fields


def is_government_id_missing(recipient: JsonObject, account_country: str) -> bool:
    """Whether the recipient lacks the government id that section 2.4 requires in a country."""
    if find_government_id_digit_range(account_country, str(recipient.get("type"))) is None:
        return False
    return not any(
        government_id.get("country") == account_country and government_id.get("type") != "passport"
        for government_id in recipient.get("governmentIds", [])
    )


def _check_bank_account(problems: Problems, fields: JsonObject) -> None:
    bank_fields = {name: value for name, value in fields.items() if not is_blank(value)}
    for name in BANK_FIELDS:
        if name in bank_fields and not isinstance(bank_fields[name], str):
            problems.add_invalid_field(name, "Must be a string")
            bank_fields[name] = ""  # One problem per field: the rules below ignore an empty text.
    country = bank_fields.get("country", "")
    has_iban = country in IBAN_COUNTRIES and "iban" in bank_fields
    # Section 2.6: what a country requires, and how it looks there.
    requirements = {
        # Section 4.2 calls it required, but with an IBAN many clients know no other number.
        "accountNum": not (is_iban_required(country) or has_iban),
        "iban": is_iban_required(country),
        "bankId": country in BANK_ID_PATTERNS,
        "branchId": country in BRANCH_ID_PATTERNS,
        **dict.fromkeys(("swiftBic", "bankAddress", "bankCity"), country in WIRE_COUNTRIES),
    }
    required = [name for name, is_required in requirements.items() if is_required]
    for name in ("currency", "country", "accountHolderName", *required):
        if name not in bank_fields:
            problems.add_empty_field(name)
    bank_id_pattern = BANK_ID_PATTERNS.get(country, BANK_ID_PATTERN)
    branch_id_pattern = BRANCH_ID_PATTERNS.get(country, BANK_ID_PATTERN)
    checks: dict[str, Check] = {
        "country": find_country_problem,
        "accountNum": _find_account_number_problem,
        "iban": _find_iban_problem,
        "bankId": validation.create_pattern_check(bank_id_pattern, "Value is invalid"),
        "branchId": validation.create_pattern_check(branch_id_pattern, "Value is invalid"),
        "swiftBic": validation.create_pattern_check(
            SWIFT_BIC_PATTERN, "Must have 8 or 11 characters"
        ),
    }
    for name, find_problem in checks.items():
        if bank_fields.get(name):
            problems.check(name, bank_fields[name], find_problem)


def _find_iban_problem(value: str) -> str | None:
    return validation.find_mask_problem(value) or (
        None if is_valid_iban(value) else "Must be an IBAN"
    )


def _find_account_number_problem(value: str) -> str | None:
    if is_valid_iban(value):
        return "Must not be an IBAN"
    is_number = re.fullmatch(ACCOUNT_NUMBER_PATTERN, value)
    return validation.find_mask_problem(value) or (
        None if is_number else "Must be an account number"
    )


OWN_FIELDS: dict[str, tuple[str, Check]] = {
    # Not checked further: clients of the gateway cannot create such accounts.
    CHECK: ("mailing", lambda value: None if isinstance(value, dict) else "Must be an object"),
    MOBILE_WALLET: ("phoneNumber", validation.find_phone_problem),
}
"""The one required field of a type other than bank transfers, and its check."""

WALLET_FIELD = ("emailAddress", validation.find_email_problem)

ACCOUNT_ID_LENGTH = 16


def build_draft_account(
    tenant: Tenant, problems: Problems, recipient_fields: JsonObject, account_body: JsonObject
) -> Account:
    """Builds an account from a request without attaching it to its recipient.

    The result is valid only if no problem was added.
    """
    account_types = (BANK_TRANSFER, tenant.vocabulary.wallet, CHECK, MOBILE_WALLET)
    account_type, is_primary = account_body.get("type"), account_body.get("primary") is True
    id_ = tenant.generate_id("A-", ACCOUNT_ID_LENGTH)
    account = Account(id_, str(account_type), is_primary, {})
    problems.check_required("type", account_type, validation.create_choice_check(*account_types))
    if account_type in account_types:
        account.fields = merge_and_check_account_fields(
            tenant, problems, recipient_fields, account, account_body
        )
    if is_blank(account.fields.get("currency")):  # Only bank accounts require a currency.
        account.fields["currency"] = recipient_fields.get("primaryCurrency") or "USD"
    return account


def attach_account(recipient: Recipient, account: Account) -> None:
    recipient.accounts.append(account)
    if account.is_primary or len(recipient.accounts) == 1:
        set_primary_account(recipient, account)


def renew_account(
    tenant: Tenant, recipient: Recipient, account: Account, *, make_primary: bool
) -> None:
    """Gives an account with new fields a new id (rule 3); the old one gets `not_found`."""
    account.id = tenant.generate_id("A-", ACCOUNT_ID_LENGTH)
    if make_primary or account.is_primary:
        set_primary_account(recipient, account)


def remove_account(recipient: Recipient, account: Account) -> None:
    # The document does not show which account becomes primary: here the first remaining one.
    recipient.accounts.remove(account)
    if account.is_primary and recipient.accounts:
        set_primary_account(recipient, recipient.accounts[0])


def set_primary_account(recipient: Recipient, account: Account) -> None:
    # Rule 2: exactly one account is primary.
    for other_account in recipient.accounts:
        other_account.is_primary = other_account is account
    recipient.fields["primaryCurrency"] = account.fields["currency"]
