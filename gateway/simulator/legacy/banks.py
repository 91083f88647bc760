"""Translation of accounts from the legacy fields to the service's (section 4.2).

Legacy clients use a different field for the branch in each country; the service has one.
"""

import re
from dataclasses import dataclass, field

from gateway.simulator.countries import BRANCH_ID_PATTERNS
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient
from gateway.simulator.validation import mask_value

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


def list_masks_sent_back(sent_fields: JsonObject, previous_fields: JsonObject) -> list[str]:
    """Lists the numbers that equal the mask which responses show."""
    masks = {name: mask_value(previous_fields.get(name)) for name in MASKED_FIELDS}
    return [name for name, mask in masks.items() if mask and sent_fields.get(name) == mask]


def translate_bank_account(sent_fields: JsonObject, previous_fields: JsonObject) -> AccountBody:
    """Translates a bank account.

    `sent_fields` has no nulls; `previous_fields` are those of the account that the client sees.
    """
    country = lenient.normalize_country(sent_fields.get("country", previous_fields.get("country")))
    has_province = "bankProvince" in sent_fields
    client_names = {
        "accountHolderName": "name",
        "bankRegion": "bankProvince" if has_province else "bankRegion",
    }
    if country == "CA":  # Elsewhere `institution` is the name of the bank in responses.
        client_names["bankId"] = "institution"
    if branch_names := list_branch_id_field_names(str(country)):
        sent_names = [name for name in branch_names if name in sent_fields]
        client_names["branchId"] = (sent_names or branch_names)[0]
    account_body = _rename_fields(sent_fields, client_names, UNCHANGED_FIELDS)
    fields = account_body.fields
    if "country" in fields:
        fields["country"] = country
    # They mean "unchanged"; any other mask is refused by the service's rules.
    for name in list_masks_sent_back(fields, previous_fields):
        del fields[name]
    compact_iban = str(fields.get("iban")).replace(" ", "").upper()
    if isinstance(fields.get("branchId"), str):
        fields["branchId"] = re.sub("[ -]", "", fields["branchId"])
    elif country == "GB" and compact_iban.startswith("GB"):
        fields.setdefault("branchId", compact_iban[SORT_CODE_RANGE])
    return account_body


def translate_wallet(sent_fields: JsonObject) -> AccountBody:
    """Translates a wallet account."""
    # The document has no currency for it, but one is accepted as for a bank account.
    return _rename_fields(sent_fields, {"emailAddress": "address"}, ("currency",))


def _rename_fields(
    sent_fields: JsonObject, client_names: dict[str, str], unchanged_names: tuple[str, ...]
) -> AccountBody:
    names = {name: name for name in unchanged_names} | client_names
    fields = {name: sent_fields[sent] for name, sent in names.items() if sent in sent_fields}
    if "currency" in fields:
        fields["currency"] = lenient.normalize_currency(fields["currency"])
        client_names["currency"] = "currency"
    return AccountBody(fields, client_names)


def list_branch_id_field_names(country: str) -> tuple[str, ...]:
    """Lists the branch fields: `routing` (US), `branchNum` (Canada), either in other countries."""
    if country not in BRANCH_ID_PATTERNS:
        return ()
    return {"US": ("routing",), "CA": ("branchNum",)}.get(country, ("branchNum", "routing"))
