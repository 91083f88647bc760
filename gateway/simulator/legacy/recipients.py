"""Operations on recipients and payout methods (sections 4.1 and 4.2)."""

import re
from functools import partial

from gateway.simulator import recipients
from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import (
    batch_views,
    filters,
    government_ids,
    payout_bodies,
    payout_views,
    recipient_bodies,
    recipient_list,
    recipient_views,
)
from gateway.simulator.legacy.legacy_request import DELETED, UPDATED, LegacyRequest
from gateway.simulator.legacy.lenient import parse_object
from gateway.simulator.legacy.payout_bodies import Mode, PayoutPlan
from gateway.simulator.state import Recipient


def create_payout_methods(request: LegacyRequest) -> JsonObject:
    _parse_and_apply_payout_body(request, "post")
    return get_payout_methods(request)


def get_payout_methods(request: LegacyRequest) -> JsonObject:
    payout = payout_views.build_payout(request.tenant, request.require_path_recipient())
    if payout is None:
        raise build_not_found_error("Payout method")
    return payout


def update_payout_methods(request: LegacyRequest) -> JsonObject:
    _parse_and_apply_payout_body(request, "patch")
    return UPDATED


def _parse_and_apply_payout_body(request: LegacyRequest, mode: Mode) -> None:
    recipient, problems = request.require_path_recipient(), Problems()
    plan = payout_bodies.PayoutParser(
        request.tenant, problems, request.body, recipient.fields, recipient, mode
    ).parse()
    problems.raise_if_any()
    plan.apply_to_recipient(request.tenant, recipient)


def create_recipient(request: LegacyRequest) -> JsonObject:
    problems = Problems()
    fields = recipient_bodies.parse_new_recipient(problems, request.body)
    plan = _parse_payout(request, problems, fields, None, "create")
    problems.raise_if_any()
    recipient = recipients.insert_recipient(request.tenant, fields, [])
    plan.apply_to_recipient(request.tenant, recipient)
    request.logged_recipients.append(recipient)
    return {"recipient": recipient_views.build_recipient(request, recipient)}


def get_recipient(request: LegacyRequest) -> JsonObject:
    return {"recipient": recipient_views.build_recipient(request, request.require_path_recipient())}


def update_recipient(request: LegacyRequest) -> JsonObject:
    recipient, problems = request.require_path_recipient(), Problems()
    fields, sent_names = recipient_bodies.parse_recipient_change(problems, request.body, recipient)
    status = recipient_bodies.parse_status_change(
        problems, request.body, recipient_views.translate_status(recipient)
    )
    plan = _parse_payout(request, problems, fields, recipient, "patch")
    problems.raise_if_any()
    if status is not None:
        # The service has fewer words; the legacy one is stored beside it.
        fields["status"] = recipient_bodies.STATUS_CHOICES[status][0]
    if request.body.get("id"):  # A whole object sent back: unchanged fields are not changes.
        current_view = recipient_views.build_recipient(request, recipient)
        sent_names = {
            name
            for name in sent_names
            if not _is_unchanged(request.body, fields, name, current_view)
        }
    if sent_names or status is not None:
        recipients.apply_recipient_fields(request.tenant, recipient, fields, sent_names)
    # After the change, which clears the previous word.
    if status is not None:
        recipient.legacy_status = recipient_bodies.STATUS_CHOICES[status][1]
    if request.body.get("payout"):
        plan.apply_to_recipient(request.tenant, recipient)
    return UPDATED


def _is_unchanged(
    body: JsonObject, fields: JsonObject, name: str, current_view: JsonObject
) -> bool:
    """Whether a sent field equals the shown one; for an address, only the fields that were sent."""
    value, current_value = body.get(name), current_view.get(name)
    if isinstance(value, dict) and isinstance(current_value, dict):
        return all(part == current_value.get(field) for field, part in value.items())
    # Not `body`: a currency may be sent under another name than it is shown.
    return bool(fields.get(name) == current_value)


def _parse_payout(
    request: LegacyRequest,
    problems: Problems,
    fields: JsonObject,
    recipient: Recipient | None,
    mode: Mode,
) -> PayoutPlan:
    payout_body = parse_object(problems, request.body, "payout")
    payout_problems = problems.create_nested_view("payout.")
    ssn = request.body.get("ssn")
    is_unchanged = recipient is not None and ssn == government_ids.mask_recipient_ssn(
        recipient.fields
    )
    if is_unchanged or not (isinstance(ssn, str) and re.fullmatch(r"[0-9]{9}|.*\*.*", ssn)):
        ssn = None
    return payout_bodies.PayoutParser(
        request.tenant, payout_problems, payout_body, fields, recipient, mode, ssn
    ).parse()


def delete_recipient(request: LegacyRequest) -> JsonObject:
    recipients.archive_recipients(request.tenant, [request.require_path_recipient()])
    return DELETED


def delete_recipients(request: LegacyRequest) -> JsonObject:
    """Deletes several recipients, or none if one id is unknown."""
    found_recipients = [
        request.require_recipient(recipient_id) for recipient_id in request.parse_ids()
    ]
    request.logged_recipients.extend(found_recipients)
    recipients.archive_recipients(request.tenant, found_recipients)
    return DELETED


def list_recipients(request: LegacyRequest) -> JsonObject:
    matches = recipient_list.filter_recipients(request)
    return request.build_page(
        "recipients",
        matches,
        lambda recipient: recipient_views.build_recipient(request, recipient),
    )


def list_activities(request: LegacyRequest) -> JsonObject:
    """Lists the activity log, newest first."""
    # Not `require_path_recipient`, which would enter this request in the log.
    recipient = request.require_recipient(request.path_ids[0])
    client_id = request.build_client_id(recipient.id)

    def build_entry(activity: JsonObject) -> JsonObject:
        fields_with_ids = ("url", "request", "response")
        return activity | {
            # The log has the service's id, which legacy clients do not know.
            name: activity[name].replace(recipient.id, client_id)
            for name in fields_with_ids
        }

    return request.build_page("activities", list(reversed(recipient.activities)), build_entry)


def list_payments(request: LegacyRequest) -> JsonObject:
    build_view = partial(batch_views.build_payment, request)
    payments = request.tenant.list_newest_payments(request.require_path_recipient())
    matches = filters.filter_payments(request, payments, build_view)
    return request.build_page("payments", matches, build_view)
