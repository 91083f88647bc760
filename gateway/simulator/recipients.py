"""Changes of recipients (current interface, sections 3 and 4.1)."""

from collections.abc import Iterable

from gateway.simulator import accounts
from gateway.simulator.account_rules import (
    BANK_TRANSFER,
    CHECK,
    MOBILE_WALLET,
    is_government_id_missing,
)
from gateway.simulator.countries import PHONE_COUNTRIES
from gateway.simulator.errors import Problems, build_invalid_status_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipient_rules import CREATE_CHECKS, UPDATE_CHECKS, merge_recipient_fields
from gateway.simulator.state import Account, Recipient, Tenant
from gateway.simulator.values import is_blank


def create_recipient(tenant: Tenant, body: JsonObject) -> Recipient:
    """Creates a recipient, with accounts if the body has any. Raises ApiError."""
    # The document does not name the field for accounts: `account` and `accounts` are both accepted.
    problems = Problems()
    fields = merge_recipient_fields(problems, body, CREATE_CHECKS, {})
    drafts = [
        accounts.build_draft_account(
            tenant, problems.create_nested_view(f"{path}."), fields, account_body
        )
        for path, account_body in _iter_account_bodies(problems, body)
    ]
    problems.raise_if_any()
    return insert_recipient(tenant, fields, drafts)


def insert_recipient(tenant: Tenant, fields: JsonObject, drafts: Iterable[Account]) -> Recipient:
    now = tenant.now()
    recipient = Recipient(_generate_recipient_id(tenant), fields, created_at=now, updated_at=now)
    tenant.recipients[recipient.id] = recipient
    # Both interfaces show the same objects, each under its own id.
    tenant.register_legacy_id(recipient.id)
    tenant.effects.creation_counts["recipient"] += 1
    # In the order of the request: without a primary one, the first becomes it (section 4.2).
    for account in drafts:
        accounts.attach_account(recipient, account)
        tenant.effects.creation_counts["account"] += 1
    refresh_status(recipient)
    return recipient


def _generate_recipient_id(tenant: Tenant) -> str:
    while (
        recipient_id := tenant.generate_id("R-", tenant.options.recipient_id_length)
    ) in tenant.recipients:
        pass
    return recipient_id


def _iter_account_bodies(problems: Problems, body: JsonObject) -> Iterable[tuple[str, JsonObject]]:
    account_list = body.get("accounts") or []
    if not isinstance(account_list, list):
        problems.add_invalid_field("accounts", "Must be an array")
        account_list = []
    account_bodies = [
        (f"accounts[{position}]", account_body)
        for position, account_body in enumerate(account_list)
    ]
    if body.get("account") is not None:
        account_bodies.append(("account", body["account"]))
    for path, account_body in account_bodies:
        if isinstance(account_body, dict):
            yield path, account_body
        else:
            problems.add_invalid_field(path, "Must be an object")


def update_recipient(tenant: Tenant, recipient: Recipient, body: JsonObject) -> None:
    """Changes a recipient's own fields; accounts in the body are ignored. Raises ApiError."""
    # Section 3 allows setting a status in any state, which also takes a recipient out of the
    # archive. An archived recipient accepts no other change.
    if "status" not in body:
        check_not_archived(recipient)
    problems = Problems()
    fields = merge_recipient_fields(problems, body, UPDATE_CHECKS, recipient.fields)
    problems.raise_if_any()
    apply_recipient_fields(tenant, recipient, fields, body.keys())


def apply_recipient_fields(
    tenant: Tenant, recipient: Recipient, fields: JsonObject, sent_names: Iterable[str]
) -> None:
    """Stores `fields` from `merge_recipient_fields`; `sent_names` are those in the request."""
    # A recipient has its status in an attribute, not among its fields.
    status = fields.pop("status", None)
    recipient.fields = fields
    recipient.updated_at = tenant.now()
    if status is not None:
        set_status(recipient, status)
    elif {"address", "phone", "governmentIds", "type"}.intersection(sent_names):
        refresh_status(recipient)


def check_not_archived(recipient: Recipient) -> None:
    if recipient.is_archived:
        raise build_invalid_status_error("Recipient is archived")


def archive_recipients(tenant: Tenant, recipients: Iterable[Recipient]) -> None:
    for recipient in recipients:
        set_status(recipient, "archived")
        recipient.updated_at = tenant.now()


def refresh_status(recipient: Recipient) -> None:
    """Sets `incomplete` or `active` by the recipient's data; a status set by a client stays."""
    if recipient.status in ("incomplete", "active"):
        set_status(recipient, "active" if is_recipient_payable(recipient) else "incomplete")


def set_status(recipient: Recipient, status: str) -> None:
    # The legacy interface's own word belongs to the previous status.
    if status != recipient.status:
        recipient.legacy_status = None
    recipient.status = status


def is_recipient_payable(recipient: Recipient) -> bool:
    """Whether a recipient has all data that payments need (section 1, item 6).

    Bank transfers also need the data of sections 2.4 and 2.5. Payments to a wallet need no address
    (legacy interface, section 3).
    """
    address, primary = recipient.address, recipient.primary_account
    if primary is None:
        return False
    if primary.type not in (BANK_TRANSFER, CHECK, MOBILE_WALLET):
        return True
    if is_blank(address.get("country")):
        return False
    countries = [
        account.fields["country"] for account in recipient.accounts if account.type == BANK_TRANSFER
    ]
    if not countries:
        return True
    if is_blank(address.get("street1")) or is_blank(address.get("city")):
        return False
    if PHONE_COUNTRIES.intersection(countries) and is_blank(address.get("phone")):
        return False
    return not any(is_government_id_missing(recipient.fields, country) for country in countries)
