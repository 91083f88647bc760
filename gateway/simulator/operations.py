"""Every operation of the current interface that the simulator has: its path and its answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.simulator import accounts, listing, recipients, views
from gateway.simulator.paging import read_page
from gateway.simulator.refusals import Problems, not_found
from gateway.simulator.state import Recipient, World
from gateway.simulator.wire import JsonObject


@dataclass
class Arrived:
    """One accepted request. `body` has the query's arguments too (section 4).

    `touched` are the recipients that it was about, for their activity logs.
    """

    world: World
    ids: tuple[str, ...]
    query: dict[str, str]
    body: JsonObject
    touched: list[Recipient] = field(default_factory=list)

    def recipient(self) -> Recipient:
        found = self.world.recipient(self.ids[0])
        self.touched.append(found)
        return found


Operation = Callable[[Arrived], JsonObject]


def create_recipient(arrived: Arrived) -> JsonObject:
    created = recipients.create(arrived.world, arrived.body)
    arrived.touched.append(created)
    return {"recipient": views.recipient(arrived.world, created)}


def read_recipient(arrived: Arrived) -> JsonObject:
    return {"recipient": views.recipient(arrived.world, arrived.recipient())}


def update_recipient(arrived: Arrived) -> JsonObject:
    recipient = arrived.recipient()
    recipients.update(arrived.world, recipient, arrived.body)
    return {"recipient": views.recipient(arrived.world, recipient)}


def delete_recipient(arrived: Arrived) -> JsonObject:
    recipients.archive(arrived.world, [arrived.recipient()])
    return {}


def delete_recipients(arrived: Arrived) -> JsonObject:
    """One unknown id, and nothing is deleted."""
    ids = arrived.body.get("ids")
    problems = Problems()
    if ids is None or ids == []:
        problems.empty("ids")
    elif not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        problems.invalid("ids", "Must be an array of strings")
    problems.refuse_if_any()
    found = [arrived.world.recipient(each) for each in ids or []]
    arrived.touched.extend(found)
    recipients.archive(arrived.world, found)
    return {}


def list_recipients(arrived: Arrived) -> JsonObject:
    return listing.recipients(arrived.world, arrived.query)


def list_logs(arrived: Arrived) -> JsonObject:
    """The newest first. Reading the log is not itself entered in it."""
    recipient = arrived.world.recipient(arrived.ids[0])
    return _page(arrived, "activities", list(reversed(recipient.activities)))


def list_payments(arrived: Arrived) -> JsonObject:
    recipient = arrived.recipient()
    shown = [views.payment(arrived.world, recipient, each) for each in recipient.payments]
    return _page(arrived, "payments", shown)


def list_offline_payments(arrived: Arrived) -> JsonObject:
    return {"offlinePayments": arrived.recipient().offline_payments}


def _page(arrived: Arrived, name: str, entries: Sequence[JsonObject]) -> JsonObject:
    problems = Problems()
    page = read_page(problems, arrived.query, arrived.world.switches.max_page_size)
    problems.refuse_if_any()
    return {name: page.of(entries), "meta": page.meta(len(entries))}


def create_account(arrived: Arrived) -> JsonObject:
    recipient = arrived.recipient()
    recipients.writable(recipient)
    problems = Problems()
    account = accounts.draft(arrived.world, problems, recipient.fields, arrived.body)
    problems.refuse_if_any()
    accounts.attach(recipient, account)
    _changed(arrived, recipient)
    return {"account": views.account(account)}


def read_account(arrived: Arrived) -> JsonObject:
    return {"account": views.account(accounts.of(arrived.recipient(), arrived.ids[1]))}


def update_account(arrived: Arrived) -> JsonObject:
    recipient = arrived.recipient()
    account = accounts.of(recipient, arrived.ids[1])
    recipients.writable(recipient)
    accounts.update(arrived.world, recipient, account, arrived.body)
    _changed(arrived, recipient)
    return {"account": views.account(account)}


def delete_account(arrived: Arrived) -> JsonObject:
    recipient = arrived.recipient()
    account = accounts.of(recipient, arrived.ids[1])
    recipients.writable(recipient)
    accounts.remove(recipient, account)
    _changed(arrived, recipient)
    return {"object": "deleted"}


def _changed(arrived: Arrived, recipient: Recipient) -> None:
    recipient.updated_at = arrived.world.now()
    recipients.settle(recipient)


def _at(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r":[A-Za-z]+", "([^/]+)", path))


RECIPIENTS = _at("/v1/recipients")
RECIPIENT = _at("/v1/recipients/:id")
ACCOUNTS = _at("/v1/recipients/:id/accounts")
ACCOUNT = _at("/v1/recipients/:id/accounts/:recipientAccountId")

OPERATIONS: tuple[tuple[str, re.Pattern[str], Operation], ...] = (
    ("POST", RECIPIENTS, create_recipient),
    ("GET", RECIPIENTS, list_recipients),
    ("DELETE", RECIPIENTS, delete_recipients),
    ("GET", RECIPIENT, read_recipient),
    ("PATCH", RECIPIENT, update_recipient),
    ("DELETE", RECIPIENT, delete_recipient),
    ("GET", _at("/v1/recipients/:id/logs"), list_logs),
    ("GET", _at("/v1/recipients/:id/payments"), list_payments),
    ("GET", _at("/v1/recipients/:id/offlinePayments"), list_offline_payments),
    ("POST", ACCOUNTS, create_account),
    ("GET", ACCOUNT, read_account),
    ("PATCH", ACCOUNT, update_account),
    ("DELETE", ACCOUNT, delete_account),
)


def find_operation(method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
    """Paths are taken as written: no trailing slash, nothing decoded.

    Raises Refusal `not_found` for an unknown path, and for a method that a path does not have.
    """
    for known, pattern, operation in OPERATIONS:
        if known == method and (match := pattern.fullmatch(path)):
            return operation, match.groups()
    raise not_found("Path")
