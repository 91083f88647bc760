"""Changes of recipients' accounts (current interface, section 4.2)."""

from typing import Any

from gateway.simulator.account_rules import (
    BANK,
    CHECK,
    MOBILE_WALLET,
    lacks_government_id,
    read_account,
)
from gateway.simulator.refusals import Problems, not_found
from gateway.simulator.state import Account, Recipient, World
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject

ID_LENGTH = 16


def draft(world: World, problems: Problems, recipient: JsonObject, body: JsonObject) -> Account:
    """Build an account from a request without attaching it to its recipient.

    The result is valid only if no problem was added.
    """
    kinds = (BANK, world.words.wallet, CHECK, MOBILE_WALLET)
    kind = body.get("type")
    fields: JsonObject = {}
    if blank(kind):
        problems.empty("type")
    elif kind not in kinds:
        problems.invalid("type", f"Must be one of: {', '.join(kinds)}")
    else:
        fields = read_account(problems, kind, body, {}, world.switches)
        _check_primary(problems, body)
        _check_government_id(world, problems, recipient, str(kind), fields)
    if blank(fields.get("currency")):  # Only bank accounts require a currency.
        fields["currency"] = recipient.get("primaryCurrency") or "USD"
    return Account(_new_id(world), str(kind), body.get("primary") is True, fields)


def attach(recipient: Recipient, account: Account) -> None:
    recipient.accounts.append(account)
    if account.primary or len(recipient.accounts) == 1:
        make_primary(recipient, account)


def update(world: World, recipient: Recipient, account: Account, body: JsonObject) -> Account:
    """Change an account. It gets a new id (rule 3) and keeps its position in the list."""
    problems = Problems()
    if "type" in body and body["type"] != account.type:
        problems.invalid("type", "Cannot be changed")
    if account.primary and body.get("primary") is False:
        # Rule 2: exactly one account is primary, so a client must choose the next one.
        problems.invalid("primary", "Make another account primary")
    fields = read_change(world, problems, recipient.fields, account, body)
    _check_primary(problems, body)
    problems.refuse_if_any()
    change(world, recipient, account, fields, primary=bool(body.get("primary")))
    return account


def read_change(
    world: World, problems: Problems, recipient: JsonObject, account: Account, body: JsonObject
) -> JsonObject:
    """Return the account's fields after a change; they are valid only if no problem was added."""
    fields = read_account(problems, account.type, body, account.fields, world.switches)
    _check_government_id(world, problems, recipient, account.type, fields)
    return fields


def change(
    world: World, recipient: Recipient, account: Account, fields: JsonObject, *, primary: bool
) -> None:
    # A new id for each change (rule 3); clients that use the old one get `not_found`.
    account.id, account.fields = _new_id(world), fields
    if primary or account.primary:
        make_primary(recipient, account)


def remove(recipient: Recipient, account: Account) -> None:
    """Remove an account from its recipient."""
    # The document does not show which account becomes primary: here the first remaining one.
    recipient.accounts.remove(account)
    if account.primary and recipient.accounts:
        make_primary(recipient, recipient.accounts[0])


def make_primary(recipient: Recipient, account: Account) -> None:
    for each in recipient.accounts:
        each.primary = each is account
    recipient.fields["primaryCurrency"] = account.fields["currency"]


def of(recipient: Recipient, account_id: str) -> Account:
    """Raises ApiError `not_found`, also for an id that an update has replaced."""
    for account in recipient.accounts:
        if account.id == account_id:
            return account
    raise not_found("Recipient account")


def _new_id(world: World) -> str:
    return world.new_id("A-", ID_LENGTH)


def _check_primary(problems: Problems, body: dict[str, Any]) -> None:
    if not isinstance(body.get("primary", False), bool):
        problems.invalid("primary", "Must be a boolean")


def _check_government_id(
    world: World, problems: Problems, recipient: JsonObject, kind: str, fields: JsonObject
) -> None:
    if kind != BANK or world.switches.missing_government_id == "incomplete":
        return
    if lacks_government_id(recipient, str(fields.get("country"))):
        problems.empty("governmentIds")
