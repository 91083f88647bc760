"""Operations on payout methods (section 4.2)."""

from gateway.simulator.legacy import payout_bodies, payout_views
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.legacy.payout_bodies import Mode
from gateway.simulator.refusals import Problems, not_found
from gateway.simulator.wire import JsonObject


def create(asked: Asked) -> JsonObject:
    _carry_out(asked, "post")
    return read(asked)


def read(asked: Asked) -> JsonObject:
    shown = payout_views.payout(asked.world, asked.recipient())
    if shown is None:
        raise not_found("Payout method")
    return shown


def update(asked: Asked) -> JsonObject:
    _carry_out(asked, "patch")
    return {"object": "updated"}


def _carry_out(asked: Asked, mode: Mode) -> None:
    recipient, problems = asked.recipient(), Problems()
    plan = payout_bodies.Reading(
        asked.world, problems, asked.body, recipient.fields, recipient, mode
    ).read()
    problems.refuse_if_any()
    plan.carry_out(asked.world, recipient)
