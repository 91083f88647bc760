"""Operations on recipients and their accounts (current interface, sections 4.1 and 4.2)."""

from functools import partial

from gateway.simulator import accounts, batch_views, listing, recipients, views
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Recipient


def create_recipient(request: AcceptedRequest) -> JsonObject:
    recipient = recipients.create_recipient(request.tenant, request.body)
    # The recipient did not exist when the request came, so the path cannot name it.
    request.logged_recipients.append(recipient)
    return {"recipient": views.build_recipient(request.tenant, recipient)}


def read_recipient(request: AcceptedRequest) -> JsonObject:
    return {"recipient": views.build_recipient(request.tenant, request.require_path_recipient())}


def update_recipient(request: AcceptedRequest) -> JsonObject:
    recipient = request.require_path_recipient()
    recipients.update_recipient(request.tenant, recipient, request.body)
    return {"recipient": views.build_recipient(request.tenant, recipient)}


def delete_recipient(request: AcceptedRequest) -> JsonObject:
    recipients.archive_recipients(request.tenant, [request.require_path_recipient()])
    return {}


def delete_recipients(request: AcceptedRequest) -> JsonObject:
    """Deletes several recipients, or none if one id is unknown."""
    # All are looked up before the first one is archived.
    found_recipients = [
        request.tenant.require_recipient(recipient_id) for recipient_id in request.parse_ids()
    ]
    request.logged_recipients.extend(found_recipients)
    recipients.archive_recipients(request.tenant, found_recipients)
    return {}


def list_recipients(request: AcceptedRequest) -> JsonObject:
    return listing.list_recipients(request.tenant, request.query)


def list_activities(request: AcceptedRequest) -> JsonObject:
    """Lists the activity log, newest first."""
    # Not `require_path_recipient`, which would enter this request in the log.
    recipient = request.tenant.require_recipient(request.path_ids[0])
    return request.build_page("activities", list(reversed(recipient.activities)), dict)


def list_payments(request: AcceptedRequest) -> JsonObject:
    payments = request.tenant.list_newest_payments(request.require_path_recipient())
    build_entry = partial(batch_views.build_payment, request.tenant)
    return request.build_page("payments", payments, build_entry)


def create_account(request: AcceptedRequest) -> JsonObject:
    recipient = request.require_path_recipient()
    recipients.check_not_archived(recipient)
    problems = Problems()
    account = accounts.build_draft_account(request.tenant, problems, recipient.fields, request.body)
    problems.raise_if_any()
    accounts.attach_account(recipient, account)
    request.tenant.effects.creation_counts["account"] += 1
    _refresh_status_and_updated_at(request, recipient)
    return {"account": views.build_account(account)}


def read_account(request: AcceptedRequest) -> JsonObject:
    return {
        "account": views.build_account(
            accounts.require_account(request.require_path_recipient(), request.path_ids[1])
        )
    }


def update_account(request: AcceptedRequest) -> JsonObject:
    recipient = request.require_path_recipient()
    account = accounts.require_account(recipient, request.path_ids[1])
    recipients.check_not_archived(recipient)
    accounts.update_account(request.tenant, recipient, account, request.body)
    _refresh_status_and_updated_at(request, recipient)
    return {"account": views.build_account(account)}


def delete_account(request: AcceptedRequest) -> JsonObject:
    recipient = request.require_path_recipient()
    account = accounts.require_account(recipient, request.path_ids[1])
    recipients.check_not_archived(recipient)
    accounts.remove_account(recipient, account)
    _refresh_status_and_updated_at(request, recipient)
    return {"object": "deleted"}


def _refresh_status_and_updated_at(request: AcceptedRequest, recipient: Recipient) -> None:
    recipient.updated_at = request.tenant.now()
    recipients.refresh_status(recipient)
