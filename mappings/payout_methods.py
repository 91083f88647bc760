"""Payout methods (legacy interface, section 4.2): three operations."""

from mappings import banking, legacy, payouts, recipient_outcomes, recipient_reads
from mappings.effects import Answer, Flow, Operation, Request, SubFlow
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.objects import build_legacy_payout, mask_number
from mappings.payout_changes import PayoutChanges, apply_payout_changes


def create_payout_method(request: Request) -> Flow:
    """Answers POST /recipients/:id/payout-methods.

    GET    /recipients/:id                    the existing accounts
    PATCH  /recipients/:id                    governmentIds if one was sent: the account may need it
    PATCH  /recipients/:id/accounts/:account  for an existing account sent back with its mask: the
                                              changed fields and the primary flag; no call if
                                              nothing changed
    POST   /recipients/:id/accounts           for each new account, the primary one first
    PATCH  /recipients/:id/accounts/:account  for a wallet that the service gave another currency
    DELETE /recipients/:id/accounts/:account  for each account that a new one replaces; after a 404
                                              the recipient is read again, to find its new id

    If an account is refused, the government ids stay; sending them again is harmless.
    """
    recipient, facts, notices = yield from _change_payout(request, is_replacement=True)
    return Answer(build_legacy_payout(recipient, facts, request.options) or {}, notices)


def read_payout_method(request: Request) -> Flow:
    """Answers GET /recipients/:id/payout-methods.

    GET /recipients/:id
    """
    recipient, facts = yield from recipient_reads.load_recipient(request.ids["id"])
    answer = build_legacy_payout(recipient, facts, request.options)
    # Only this operation answers 404: elsewhere a recipient without a payout method is no error
    # (contract, section 4).
    if answer is None:
        raise Invalid(NOT_FOUND)
    return Answer(answer)


def update_payout_method(request: Request) -> Flow:
    """Answers PATCH /recipients/:id/payout-methods.

    GET    /recipients/:id                    to find the changed fields
    PATCH  /recipients/:id                    governmentIds if one was sent
    PATCH  /recipients/:id/accounts/:account  the wallet's changed fields, and the primary flag; set
                                              back if the bank account is refused
    POST   /recipients/:id/accounts           if there is no such account, or its country changes
    PATCH  /recipients/:id/accounts/:account  the bank account's changed fields, and the primary flag
    DELETE /recipients/:id/accounts/:account  for an account that a new one replaces
    """
    _, _, notices = yield from _change_payout(request, is_replacement=False)
    return Answer({"object": "updated"}, notices)


def _change_payout(request: Request, *, is_replacement: bool) -> SubFlow:
    """Returns the recipient and its facts after the change, and notices for the operator."""
    recipient, facts = yield from recipient_reads.load_recipient(request.ids["id"])
    payout = payouts.parse_payout(request.body, "", request.problems, recipient)
    is_late = yield from recipient_reads.is_shown_late(recipient)
    changes = PayoutChanges(
        payout, recipient, facts, is_replacement=is_replacement, is_shown_late=is_late
    )
    if is_late:
        is_any_added = bool(changes.methods_to_create) and not is_replacement
        yield from recipient_reads.raise_if_account_missing(recipient, is_any_added=is_any_added)
    ids = changes.government_ids
    problems = [*changes.validate(request.options)]
    if ids:
        problems += banking.validate_government_ids(
            ids, recipient, request.options, is_shown_late=is_late
        )
    recipient_reads.raise_if_invalid(request, problems, is_shown_late=is_late)
    # Sent before the accounts, because in some countries the service requires the government id
    # first.
    if ids:
        fields = {"governmentIds": banking.build_government_id_entries(ids)}
        field_map = banking.map_government_id_field_names_to_client(ids)
        response = yield recipient_outcomes.build_recipient_update_call(
            recipient["id"], fields, field_map, recipient
        )
        # Masked as the service shows them; its response may not.
        shown_ids = [
            {**entry, "value": mask_number(entry["value"])} for entry in fields["governmentIds"]
        ]
        recipient = {**recipient, "governmentIds": shown_ids, **(response.get("recipient") or {})}
        changes = PayoutChanges(
            changes.payout, recipient, facts, is_replacement=is_replacement, is_shown_late=is_late
        )
    recipient = yield from apply_payout_changes(changes, request.options)
    return recipient, {**facts, **changes.holds}, changes.notices


_PATH = "/recipients/{id}/payout-methods"
_HOLDS_REASON = "autoswitch and holdup are stored but have no effect"

OPERATIONS = (
    Operation(
        "POST",
        _PATH,
        create_payout_method,
        "lossy",
        _HOLDS_REASON,
        body_shape=legacy.PayoutBody,
        answer_shape=legacy.Payout,
    ),
    Operation(
        "GET",
        _PATH,
        read_payout_method,
        "emulated",
        "built from the recipient's accounts",
        answer_shape=legacy.Payout,
    ),
    Operation(
        "PATCH",
        _PATH,
        update_payout_method,
        "lossy",
        _HOLDS_REASON,
        body_shape=legacy.PayoutBody,
        answer_shape=legacy.ObjectAnswer,
    ),
)
