"""Translation of accounts from the legacy fields to the service's (section 4.2).

Legacy clients use a different field for the branch in each country; the service has one.
"""

import re
from dataclasses import dataclass, field

from schwifty import IBAN

from gateway.simulator.countries import BRANCH_ID_PATTERNS, is_valid_iban, normalize_iban
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient
from gateway.simulator.values import is_blank, mask_value

UNCHANGED_FIELDS = (
    "country", "currency", "accountNum", "iban", "swiftBic", "bankAddress", "bankCity",
    "bankPostalCode",
)  # fmt: skip
MASKED_FIELDS = ("accountNum", "iban")
SORT_CODE_RANGE = slice(8, 14)  # In a British IBAN.


@dataclass
class AccountBody:
    """Translated account fields; `client_names` maps the service's names to the client's.

    It contains only names that differ, and `currency` if the account itself has one (otherwise the
    currency comes from `primary`).
    """

    fields: JsonObject
    client_names: dict[str, str] = field(default_factory=dict)


def has_number_sent_back_masked(sent_fields: JsonObject, previous_fields: JsonObject) -> bool:
    """Whether one of the numbers equals the mask that responses show."""
    return any(
        sent_fields.get(name) is not None
        and sent_fields[name] == mask_value(previous_fields.get(name))
        for name in MASKED_FIELDS
    )


def translate_bank_account(sent_fields: JsonObject, previous_fields: JsonObject) -> AccountBody:
    """Translates a bank account.

    `sent_fields` has no nulls; `previous_fields` are those of the account that the client sees.
    """
    fields = {name: sent_fields[name] for name in UNCHANGED_FIELDS if name in sent_fields}
    if "country" in fields:
        fields["country"] = lenient.normalize_country(fields["country"])
    for name in MASKED_FIELDS:
        # A mask that is sent back means "unchanged"; any other mask is refused by the service's
        # rules.
        if name in fields and fields[name] == mask_value(previous_fields.get(name)):
            del fields[name]
    if sent_fields.get("name") is not None:
        fields["accountHolderName"] = sent_fields["name"]
    account_body = AccountBody(fields, {"accountHolderName": "name"})
    _normalize_currency_field(account_body)
    country = str(fields.get("country", previous_fields.get("country", "")))
    _translate_bank_id_and_region(account_body, sent_fields, country)
    _translate_branch_id(account_body, sent_fields, country)
    return account_body


def translate_wallet(sent_fields: JsonObject) -> AccountBody:
    """Translates a wallet account."""
    # The document has no currency for it, but one is accepted as for a bank account.
    fields = {"emailAddress": sent_fields["address"]} if "address" in sent_fields else {}
    if sent_fields.get("currency") is not None:
        fields["currency"] = sent_fields["currency"]
    account_body = AccountBody(fields, {"emailAddress": "address"})
    _normalize_currency_field(account_body)
    return account_body


def _normalize_currency_field(account_body: AccountBody) -> None:
    if "currency" in account_body.fields:
        account_body.fields["currency"] = lenient.normalize_currency(
            account_body.fields["currency"]
        )
        account_body.client_names["currency"] = "currency"


def _translate_bank_id_and_region(
    account_body: AccountBody, sent_fields: JsonObject, country: str
) -> None:
    # Outside Canada `institution` is the name of the bank in responses, not its id.
    if country == "CA" and sent_fields.get("institution") is not None:
        account_body.fields["bankId"] = sent_fields["institution"]
    region_field = "bankProvince" if "bankProvince" in sent_fields else "bankRegion"
    if region_field in sent_fields:
        account_body.fields["bankRegion"] = sent_fields[region_field]
    account_body.client_names |= {"bankId": "institution", "bankRegion": region_field}


def _translate_branch_id(account_body: AccountBody, sent_fields: JsonObject, country: str) -> None:
    field_names = list_branch_id_field_names(country)
    if not field_names:
        return
    field_name = next(
        (field_name for field_name in field_names if sent_fields.get(field_name) is not None),
        field_names[0],
    )
    account_body.client_names["branchId"] = field_name
    iban = account_body.fields.get("iban")
    if isinstance(sent_fields.get(field_name), str):
        account_body.fields["branchId"] = re.sub("[ -]", "", sent_fields[field_name])
    elif sent_fields.get(field_name) is not None:
        account_body.fields["branchId"] = sent_fields[field_name]
    elif country == "GB" and isinstance(iban, str) and normalize_iban(iban).startswith("GB"):
        account_body.fields["branchId"] = normalize_iban(iban)[SORT_CODE_RANGE]


def fill_account_number_from_iban(account_body: AccountBody) -> None:
    """Fills a missing account number from the IBAN, which is enough for a legacy client."""
    iban = account_body.fields.get("iban")
    if (
        isinstance(iban, str)
        and is_valid_iban(iban)
        and is_blank(account_body.fields.get("accountNum"))
    ):
        account_body.fields["accountNum"] = IBAN(iban, allow_invalid=True).account_code


def list_branch_id_field_names(country: str) -> tuple[str, ...]:
    """Lists the branch fields: `routing` (US), `branchNum` (Canada), either in other countries."""
    if country not in BRANCH_ID_PATTERNS:
        return ()
    return {"US": ("routing",), "CA": ("branchNum",)}.get(country, ("branchNum", "routing"))
