"""Changes of recipients (current interface, sections 3 and 4.1)."""

from collections.abc import Iterable

from gateway.simulator import accounts
from gateway.simulator.account_rules import BANK, CHECK, MOBILE_WALLET, lacks_government_id
from gateway.simulator.countries import PHONE_COUNTRIES
from gateway.simulator.refusals import Problems, invalid_status
from gateway.simulator.rules import ON_CREATE, ON_UPDATE, read_fields
from gateway.simulator.state import Account, Recipient, World
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject


def create(world: World, body: JsonObject) -> Recipient:
    """Create a recipient, with accounts if the body has any. Raises ApiError."""
    # The document does not name the field for accounts: `account` and `accounts` are both accepted.
    problems = Problems()
    fields = read_fields(problems, body, ON_CREATE, {})
    drafts = [
        accounts.draft(world, problems.within(f"{at}."), fields, sent)
        for at, sent in _nested_accounts(problems, body)
    ]
    problems.refuse_if_any()
    return enter(world, fields, drafts)


def enter(world: World, fields: JsonObject, drafts: Iterable[Account]) -> Recipient:
    now = world.now()
    recipient = Recipient(_new_id(world), fields, created_at=now, updated_at=now)
    world.recipients[recipient.id] = recipient
    world.know(recipient.id)
    world.books.created["recipient"] += 1
    for account in drafts:
        accounts.attach(recipient, account)
        world.books.created["account"] += 1
    settle(recipient)
    return recipient


def _new_id(world: World) -> str:
    while (made := world.new_id("R-", world.switches.recipient_id_length)) in world.recipients:
        pass
    return made


def _nested_accounts(problems: Problems, body: JsonObject) -> Iterable[tuple[str, JsonObject]]:
    several = body.get("accounts") or []
    if not isinstance(several, list):
        problems.invalid("accounts", "Must be an array")
        several = []
    named = [(f"accounts[{position}]", sent) for position, sent in enumerate(several)]
    if body.get("account") is not None:
        named.append(("account", body["account"]))
    for at, sent in named:
        if isinstance(sent, dict):
            yield at, sent
        else:
            problems.invalid(at, "Must be an object")


def update(world: World, recipient: Recipient, body: JsonObject) -> None:
    """Change a recipient's own fields; accounts in the body are ignored. Raises ApiError."""
    # Section 3 allows setting a status in any state, which also takes a recipient out of the
    # archive. An archived recipient accepts no other change.
    if "status" not in body:
        writable(recipient)
    problems = Problems()
    fields = read_fields(problems, body, ON_UPDATE, recipient.fields)
    problems.refuse_if_any()
    change(world, recipient, fields, body.keys())


def change(world: World, recipient: Recipient, fields: JsonObject, sent: Iterable[str]) -> None:
    """Store `fields` from `parse_recipient_fields`; `sent_names` are those in the request."""
    # A recipient has its status in an attribute, not among its fields.
    status = fields.pop("status", None)
    recipient.fields = fields
    recipient.updated_at = world.now()
    if status is not None:
        move(recipient, status)
    elif {"address", "phone", "governmentIds", "type"}.intersection(sent):
        settle(recipient)


def writable(recipient: Recipient) -> None:
    if recipient.archived:
        raise invalid_status("Recipient is archived")


def archive(world: World, recipients: Iterable[Recipient]) -> None:
    for recipient in recipients:
        move(recipient, "archived")
        recipient.updated_at = world.now()


def settle(recipient: Recipient) -> None:
    """Set `incomplete` or `active` by the recipient's data; a status set by a client stays."""
    if recipient.status in ("incomplete", "active"):
        move(recipient, "active" if payable(recipient) else "incomplete")


def move(recipient: Recipient, status: str) -> None:
    # The legacy interface's own word belongs to the previous status.
    if status != recipient.status:
        recipient.legacy_status = None
    recipient.status = status


def payable(recipient: Recipient) -> bool:
    """Whether a recipient has all data that payments need (section 1, item 6).

    Bank transfers also need the data of sections 2.4 and 2.5. Payments to a wallet need no address
    (earlier interface, section 3).
    """
    address, primary = recipient.address, recipient.primary
    if primary is None:
        return False
    if primary.type not in (BANK, CHECK, MOBILE_WALLET):
        return True
    if blank(address.get("country")):
        return False
    countries = [each.fields["country"] for each in recipient.accounts if each.type == BANK]
    if not countries:
        return True
    if blank(address.get("street1")) or blank(address.get("city")):
        return False
    if PHONE_COUNTRIES.intersection(countries) and blank(address.get("phone")):
        return False
    return not any(lacks_government_id(recipient.fields, country) for country in countries)
