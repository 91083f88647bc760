"""Webhook subscriptions (current interface, sections 2.10, 4.5 and 6).

They are stored only. No webhook is sent, because the document does not show which operations emit
which events.
"""

import re

from gateway.simulator import values
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.values import Check, is_blank

ACTIONS = (
    "created",
    "updated",
    "deleted",
    "processing",
    "completed",
    "failed",
    "returned",
    "processed",
    "password-reset",
    "compliance-check",
    "upload-received",
    "upload-processing",
    "upload-completed",
    "*",
)
MODELS = ("user", "recipient", "upload", "batch", "payment", "recipientAccount", "*")
TARGET_PATTERN = re.compile(r"https?://[^\s/]+\S*")

FIELD_CHECKS: dict[str, Check] = {
    "action": values.create_choice_check(*ACTIONS),
    "model": values.create_choice_check(*MODELS),
    "target": values.create_pattern_check(TARGET_PATTERN, "Must be an http or https address"),
}
SUBSCRIPTION_ID_LENGTH = 16


def create_subscription(request: AcceptedRequest) -> JsonObject:
    fields = _parse_subscription_fields(request, {})
    subscription = {"id": request.tenant.generate_id("S-", SUBSCRIPTION_ID_LENGTH), **fields}
    request.tenant.subscriptions[subscription["id"]] = subscription
    return {"subscription": subscription}


def _parse_subscription_fields(request: AcceptedRequest, previous_fields: JsonObject) -> JsonObject:
    problems = Problems()
    # Checked as a whole: all three fields must be there after a change too.
    fields = {name: request.body.get(name, previous_fields.get(name)) for name in FIELD_CHECKS}
    for name, validate in FIELD_CHECKS.items():
        if is_blank(fields[name]):
            problems.add_empty_field(name)
        elif error := validate(fields[name]):
            problems.add_invalid_field(name, error)
    problems.raise_if_any()
    return fields


def list_subscriptions(request: AcceptedRequest) -> JsonObject:
    return {"subscriptions": list(request.tenant.subscriptions.values())}


def get_subscription(request: AcceptedRequest) -> JsonObject:
    return {"subscription": _require_subscription(request)}


def _require_subscription(request: AcceptedRequest) -> JsonObject:
    subscription = request.tenant.subscriptions.get(request.path_ids[0])
    if subscription is None:
        raise build_not_found_error("Subscription")
    return subscription


def update_subscription(request: AcceptedRequest) -> JsonObject:
    """Updates a subscription; the response has the fields at the top level and no id."""
    subscription = _require_subscription(request)
    fields = _parse_subscription_fields(request, subscription)
    subscription |= fields
    return fields


def delete_subscription(request: AcceptedRequest) -> JsonObject:
    del request.tenant.subscriptions[_require_subscription(request)["id"]]
    return {}
