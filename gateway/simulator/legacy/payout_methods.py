"""Operations on payout methods (section 4.2)."""

from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import payout_bodies, payout_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.legacy.payout_bodies import Mode


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
    return {"object": "updated"}


def _parse_and_apply_payout_body(request: LegacyRequest, mode: Mode) -> None:
    recipient, problems = request.require_path_recipient(), Problems()
    plan = payout_bodies.PayoutParser(
        request.tenant, problems, request.body, recipient.fields, recipient, mode
    ).parse()
    problems.raise_if_any()
    plan.apply_to_recipient(request.tenant, recipient)
