"""Webhook subscriptions (current interface, sections 2.10, 4.5 and 6).

They are stored only. No webhook is sent, because the document does not show which operations emit
which events.
"""

import re

from gateway.simulator import values
from gateway.simulator.arrived import Arrived
from gateway.simulator.refusals import Problems, not_found
from gateway.simulator.values import Check, blank
from gateway.simulator.wire import JsonObject

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
TARGET = re.compile(r"https?://[^\s/]+\S*")

CHECKS: dict[str, Check] = {
    "action": values.one_of(*ACTIONS),
    "model": values.one_of(*MODELS),
    "target": values.matching(TARGET, "Must be an http or https address"),
}
ID_LENGTH = 16


def create(arrived: Arrived) -> JsonObject:
    fields = _read(arrived, {})
    made = {"id": arrived.world.new_id("S-", ID_LENGTH), **fields}
    arrived.world.subscriptions[made["id"]] = made
    return {"subscription": made}


def _read(arrived: Arrived, before: JsonObject) -> JsonObject:
    problems = Problems()
    fields = {name: arrived.body.get(name, before.get(name)) for name in CHECKS}
    for name, check in CHECKS.items():
        if blank(fields[name]):
            problems.empty(name)
        elif wrong := check(fields[name]):
            problems.invalid(name, wrong)
    problems.refuse_if_any()
    return fields


def list_all(arrived: Arrived) -> JsonObject:
    return {"subscriptions": list(arrived.world.subscriptions.values())}


def read(arrived: Arrived) -> JsonObject:
    return {"subscription": _subscription(arrived)}


def _subscription(arrived: Arrived) -> JsonObject:
    found = arrived.world.subscriptions.get(arrived.ids[0])
    if found is None:
        raise not_found("Subscription")
    return found


def update(arrived: Arrived) -> JsonObject:
    """Update a subscription; the response has the fields at the top level and no id."""
    subscription = _subscription(arrived)
    fields = _read(arrived, subscription)
    subscription |= fields
    return fields


def delete(arrived: Arrived) -> JsonObject:
    del arrived.world.subscriptions[_subscription(arrived)["id"]]
    return {}
