"""Translation of accounts from the legacy fields to the service's (section 4.2).

Legacy clients use a different field for the branch in each country; the service has one.
"""

import re
from dataclasses import dataclass, field

from schwifty import IBAN

from gateway.simulator.countries import BRANCH_ID
from gateway.simulator.iban import compact, valid_iban
from gateway.simulator.legacy import loose
from gateway.simulator.values import blank, mask
from gateway.simulator.wire import JsonObject

SAME = (
    "country",
    "currency",
    "accountNum",
    "iban",
    "swiftBic",
    "bankAddress",
    "bankCity",
    "bankPostalCode",
)
MASKED = ("accountNum", "iban")
SORT_CODE = slice(8, 14)  # In a British IBAN.


@dataclass
class Written:
    """Translated account fields; `client_names` maps the service's names to the client's.

    It contains only names that differ, and `currency` if the account itself has one (otherwise the
    currency comes from `primary`).
    """

    body: JsonObject
    names: dict[str, str] = field(default_factory=dict)


def is_masked(sent: JsonObject, before: JsonObject) -> bool:
    """Whether one of the numbers equals the mask that responses show."""
    shown = {name: mask(before.get(name)) for name in MASKED}
    return any(sent.get(name) is not None and sent[name] == shown[name] for name in MASKED)


def bank(sent: JsonObject, before: JsonObject) -> Written:
    """Translate a bank account.

    `sent_fields` has no nulls; `previous_fields` are those of the account that the client sees.
    """
    body = {name: sent[name] for name in SAME if name in sent}
    if "country" in body:
        body["country"] = loose.country(body["country"])
    for name in MASKED:
        if name in body and body[name] == mask(before.get(name)):
            del body[name]
    if sent.get("name") is not None:
        body["accountHolderName"] = sent["name"]
    written = Written(body, {"accountHolderName": "name"})
    _write_currency(written)
    country = str(body.get("country", before.get("country", "")))
    _write_bank(written, sent, country)
    _write_branch(written, sent, country)
    return written


def wallet(sent: JsonObject) -> Written:
    """Translate a wallet account."""
    # The document has no currency for it, but one is accepted as for a bank account.
    body = {"emailAddress": sent["address"]} if "address" in sent else {}
    if sent.get("currency") is not None:
        body["currency"] = sent["currency"]
    written = Written(body, {"emailAddress": "address"})
    _write_currency(written)
    return written


def _write_currency(written: Written) -> None:
    if "currency" in written.body:
        written.body["currency"] = loose.currency(written.body["currency"])
        written.names["currency"] = "currency"


def _write_bank(written: Written, sent: JsonObject, country: str) -> None:
    # Outside Canada `institution` is the name of the bank in responses, not its id.
    if country == "CA" and sent.get("institution") is not None:
        written.body["bankId"] = sent["institution"]
    province = "bankProvince" if "bankProvince" in sent else "bankRegion"
    if province in sent:
        written.body["bankRegion"] = sent[province]
    written.names |= {"bankId": "institution", "bankRegion": province}


def _write_branch(written: Written, sent: JsonObject, country: str) -> None:
    known = branch_names(country)
    if not known:
        return
    name = next((name for name in known if sent.get(name) is not None), known[0])
    written.names["branchId"] = name
    iban = written.body.get("iban")
    if isinstance(sent.get(name), str):
        written.body["branchId"] = re.sub("[ -]", "", sent[name])
    elif sent.get(name) is not None:
        written.body["branchId"] = sent[name]
    elif country == "GB" and isinstance(iban, str) and compact(iban).startswith("GB"):
        written.body["branchId"] = compact(iban)[SORT_CODE]


def add_account_number(written: Written) -> None:
    """Fill a missing account number from the IBAN, which is enough for a legacy client."""
    iban = written.body.get("iban")
    if isinstance(iban, str) and valid_iban(iban) and blank(written.body.get("accountNum")):
        written.body["accountNum"] = IBAN(iban, allow_invalid=True).account_code


def branch_names(country: str) -> tuple[str, ...]:
    """List the branch fields: `routing` (US), `branchNum` (Canada), either in other countries."""
    if country not in BRANCH_ID:
        return ()
    return {"US": ("routing",), "CA": ("branchNum",)}.get(country, ("branchNum", "routing"))
