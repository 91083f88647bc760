"""Changes of recipients' accounts (current interface, section 4.2)."""

from typing import Any

from gateway.simulator.account_rules import (
    BANK_TRANSFER,
    CHECK,
    MOBILE_WALLET,
    is_government_id_missing,
    merge_and_check_account_fields,
)
from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Account, Recipient, Tenant
from gateway.simulator.values import is_blank

ACCOUNT_ID_LENGTH = 16


def build_draft_account(
    tenant: Tenant, problems: Problems, recipient_fields: JsonObject, account_body: JsonObject
) -> Account:
    """Builds an account from a request without attaching it to its recipient.

    The result is valid only if no problem was added.
    """
    account_types = (BANK_TRANSFER, tenant.vocabulary.wallet, CHECK, MOBILE_WALLET)
    account_type = account_body.get("type")
    fields: JsonObject = {}
    if is_blank(account_type):
        problems.add_empty_field("type")
    elif account_type not in account_types:
        problems.add_invalid_field("type", f"Must be one of: {', '.join(account_types)}")
    else:
        fields = merge_and_check_account_fields(
            problems, account_type, account_body, {}, tenant.options
        )
        _check_primary_is_boolean(problems, account_body)
        _check_government_id(tenant, problems, recipient_fields, str(account_type), fields)
    if is_blank(fields.get("currency")):  # Only bank accounts require a currency.
        fields["currency"] = recipient_fields.get("primaryCurrency") or "USD"
    return Account(
        _generate_account_id(tenant), str(account_type), account_body.get("primary") is True, fields
    )


def attach_account(recipient: Recipient, account: Account) -> None:
    recipient.accounts.append(account)
    if account.is_primary or len(recipient.accounts) == 1:
        set_primary_account(recipient, account)


def update_account(
    tenant: Tenant, recipient: Recipient, account: Account, body: JsonObject
) -> Account:
    """Changes an account. It gets a new id (rule 3) and keeps its position in the list."""
    problems = Problems()
    if "type" in body and body["type"] != account.type:
        problems.add_invalid_field("type", "Cannot be changed")
    if account.is_primary and body.get("primary") is False:
        # Rule 2: exactly one account is primary, so a client must choose the next one.
        problems.add_invalid_field("primary", "Make another account primary")
    fields = merge_and_check_account_change(tenant, problems, recipient.fields, account, body)
    _check_primary_is_boolean(problems, body)
    problems.raise_if_any()
    set_account_fields_and_id(
        tenant, recipient, account, fields, make_primary=bool(body.get("primary"))
    )
    return account


def merge_and_check_account_change(
    tenant: Tenant,
    problems: Problems,
    recipient_fields: JsonObject,
    account: Account,
    body: JsonObject,
) -> JsonObject:
    """Returns the account's fields after a change; they are valid only if no problem was added."""
    fields = merge_and_check_account_fields(
        problems, account.type, body, account.fields, tenant.options
    )
    _check_government_id(tenant, problems, recipient_fields, account.type, fields)
    return fields


def set_account_fields_and_id(
    tenant: Tenant,
    recipient: Recipient,
    account: Account,
    fields: JsonObject,
    *,
    make_primary: bool,
) -> None:
    # A new id for each change (rule 3); clients that use the old one get `not_found`.
    if "account-id" not in tenant.options.deviations:
        account.id = _generate_account_id(tenant)
    account.fields = fields
    if make_primary or account.is_primary:
        set_primary_account(recipient, account)


def remove_account(recipient: Recipient, account: Account) -> None:
    """Removes an account from its recipient."""
    # The document does not show which account becomes primary: here the first remaining one.
    recipient.accounts.remove(account)
    if account.is_primary and recipient.accounts:
        set_primary_account(recipient, recipient.accounts[0])


def set_primary_account(recipient: Recipient, account: Account) -> None:
    # Rule 2: exactly one account is primary.
    for other_account in recipient.accounts:
        other_account.is_primary = other_account is account
    recipient.fields["primaryCurrency"] = account.fields["currency"]


def require_account(recipient: Recipient, account_id: str) -> Account:
    """Raises ApiError `not_found`, also for an id that an update has replaced."""
    for account in recipient.accounts:
        if account.id == account_id:
            return account
    raise build_not_found_error("Recipient account")


def _generate_account_id(tenant: Tenant) -> str:
    return tenant.generate_id("A-", ACCOUNT_ID_LENGTH)


def _check_primary_is_boolean(problems: Problems, body: dict[str, Any]) -> None:
    if not isinstance(body.get("primary", False), bool):
        problems.add_invalid_field("primary", "Must be a boolean")


def _check_government_id(
    tenant: Tenant,
    problems: Problems,
    recipient_fields: JsonObject,
    account_type: str,
    fields: JsonObject,
) -> None:
    if account_type != BANK_TRANSFER or tenant.options.missing_government_id == "incomplete":
        return
    if is_government_id_missing(recipient_fields, str(fields.get("country"))):
        problems.add_empty_field("governmentIds")
