"""Operations on recipients (section 4.1)."""

import re
from functools import partial

from gateway.simulator import payment_lists, recipients
from gateway.simulator.legacy import (
    filters,
    government_ids,
    payment_views,
    payout_bodies,
    recipient_bodies,
    recipient_list,
    recipient_views,
)
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.legacy.loose import inside
from gateway.simulator.legacy.payout_bodies import Mode, Plan
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Recipient
from gateway.simulator.wire import JsonObject

UPDATED: JsonObject = {"object": "updated"}
DELETED: JsonObject = {"object": "deleted"}


def create(asked: Asked) -> JsonObject:
    problems = Problems()
    fields = recipient_bodies.read_new(problems, asked.body)
    plan = _read_payout(asked, problems, fields, None, "create")
    problems.refuse_if_any()
    made = recipients.enter(asked.world, fields, [])
    plan.carry_out(asked.world, made)
    asked.touched.append(made)
    return {"recipient": recipient_views.recipient(asked.names, made)}


def read(asked: Asked) -> JsonObject:
    return {"recipient": recipient_views.recipient(asked.names, asked.recipient())}


def update(asked: Asked) -> JsonObject:
    recipient, problems = asked.recipient(), Problems()
    fields, sent = recipient_bodies.read_change(problems, asked.body, recipient)
    status = recipient_bodies.read_status(problems, asked.body, recipient_views.status(recipient))
    plan = _read_payout(asked, problems, fields, recipient, "patch")
    problems.refuse_if_any()
    if status is not None:
        fields["status"] = recipient_bodies.STATUSES[status][0]
    if asked.body.get("id"):  # A whole object sent back: unchanged fields are not changes.
        shown = recipient_views.recipient(asked.names, recipient)
        sent = {each for each in sent if not _is_shown(asked.body, fields, each, shown)}
    if sent or status is not None:
        recipients.change(asked.world, recipient, fields, sent)
    # After the change, which clears the previous word.
    if status is not None:
        recipient.legacy_status = recipient_bodies.STATUSES[status][1]
    if asked.body.get("payout"):
        plan.carry_out(asked.world, recipient)
    return UPDATED


def _is_shown(body: JsonObject, fields: JsonObject, name: str, shown: JsonObject) -> bool:
    """Whether a sent field equals the shown one; for an address, only the fields that were sent."""
    value, was = body.get(name), shown.get(name)
    if isinstance(value, dict) and isinstance(was, dict):
        return all(part == was.get(field) for field, part in value.items())
    # Not `body`: a currency may be sent under another name than it is shown.
    return bool(fields.get(name) == was)


def _read_payout(
    asked: Asked, problems: Problems, fields: JsonObject, recipient: Recipient | None, mode: Mode
) -> Plan:
    sent = inside(problems, asked.body, "payout")
    within = problems.within("payout.")
    ssn = asked.body.get("ssn")
    is_shown = recipient is not None and ssn == government_ids.ssn(recipient.fields)
    if is_shown or not (isinstance(ssn, str) and re.fullmatch(r"[0-9]{9}|.*\*.*", ssn)):
        ssn = None
    return payout_bodies.Reading(asked.world, within, sent, fields, recipient, mode, ssn).read()


def delete(asked: Asked) -> JsonObject:
    recipients.archive(asked.world, [asked.recipient()])
    return DELETED


def delete_several(asked: Asked) -> JsonObject:
    """Delete several recipients, or none if one id is unknown."""
    found = [asked.find_recipient(each) for each in asked.wanted_ids()]
    asked.touched.extend(found)
    recipients.archive(asked.world, found)
    return DELETED


def list_all(asked: Asked) -> JsonObject:
    found = recipient_list.found(asked.names, asked.query)
    return asked.page(
        "recipients", found, lambda each: recipient_views.recipient(asked.names, each)
    )


def list_logs(asked: Asked) -> JsonObject:
    """List the activity log, newest first."""
    # Not `require_path_recipient`, which would enter this request in the log.
    recipient = asked.find_recipient(asked.ids[0])
    known_as = asked.names.shown(recipient.id)

    def entry(activity: JsonObject) -> JsonObject:
        said = ("url", "request", "response")
        return activity | {name: activity[name].replace(recipient.id, known_as) for name in said}

    return asked.page("activities", list(reversed(recipient.activities)), entry)


def list_payments(asked: Asked) -> JsonObject:
    show = partial(payment_views.whole, asked.names)
    found = filters.payments(
        asked, payment_lists.of_recipient(asked.world, asked.recipient()), show
    )
    return asked.page("payments", found, show)
