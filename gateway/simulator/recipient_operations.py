"""Operations on recipients and their accounts (current interface, sections 4.1 and 4.2)."""

from gateway.simulator import accounts, listing, payment_lists, recipients, views
from gateway.simulator.arrived import Arrived
from gateway.simulator.payment_lists import Listed
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Recipient
from gateway.simulator.wire import JsonObject


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
    """Delete several recipients, or none if one id is unknown."""
    found = [arrived.world.recipient(each) for each in arrived.wanted_ids()]
    arrived.touched.extend(found)
    recipients.archive(arrived.world, found)
    return {}


def list_recipients(arrived: Arrived) -> JsonObject:
    return listing.recipients(arrived.world, arrived.query)


def list_logs(arrived: Arrived) -> JsonObject:
    """List the activity log, newest first."""
    # Not `require_path_recipient`, which would enter this request in the log.
    recipient = arrived.world.recipient(arrived.ids[0])
    return arrived.page("activities", list(reversed(recipient.activities)), dict)


def list_payments(arrived: Arrived) -> JsonObject:
    found = payment_lists.of_recipient(arrived.world, arrived.recipient())
    return arrived.page("payments", found, Listed.shown)


def list_offline_payments(arrived: Arrived) -> JsonObject:
    return {"offlinePayments": arrived.recipient().offline_payments}


def create_account(arrived: Arrived) -> JsonObject:
    recipient = arrived.recipient()
    recipients.writable(recipient)
    problems = Problems()
    account = accounts.draft(arrived.world, problems, recipient.fields, arrived.body)
    problems.refuse_if_any()
    accounts.attach(recipient, account)
    arrived.world.books.created["account"] += 1
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
