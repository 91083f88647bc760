"""Outcome rules for writes to recipients and their accounts."""

from collections.abc import Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mappings.effects import (
    JSON,
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    LoadFacts,
    OutcomeReads,
    OutcomeRule,
    Parallel,
    Step,
)
from mappings.failures import Refused
from mappings.outcome_matching import (
    JSONObject,
    build_older_object_reason,
    confirm_operator_named_object,
    fetch_if_exists,
    fetch_whole_list,
    is_created_after_write,
    is_shown_value_compatible,
    is_view_older,
    select_created_object,
)


def build_recipient_creation_outcome_rule(body: JSONObject) -> OutcomeRule:
    """Builds the rule of a create; it reads GET /recipients?email=, then the recipient itself."""

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if write.operator_object_id is not None:
            id_ = write.operator_object_id
            recipient = yield from fetch_recipient_if_exists(id_)
            if recipient is None:
                return Inconclusive(f"the service has no recipient {id_}, named by the operator")
            if not is_created_after_write(recipient, write):
                return Inconclusive(build_older_object_reason(id_))
            # A mistyped id would pay another person, so the address has to agree.
            if is_shown_value_compatible(body.get("email"), recipient.get("email")):
                return Confirmed({"recipient": recipient}, object_id=id_)
            return Inconclusive(f"{id_}, named by the operator, has another address")
        query = {"email": str(body.get("email"))}
        rows = yield from fetch_whole_list("/recipients", "recipients", query)
        if rows is None:
            return Inconclusive("too many recipients have this email address")
        # Addresses and phone numbers are not compared, because the service may normalize them.
        match_fields = select_recipient_match_fields(body)
        rows = [*map(_drop_default_reference, rows)]
        candidates = [row for row in rows if _has_compatible_values(match_fields, row)]
        match = select_created_object(
            candidates, write, is_full_match=lambda row: _has_compatible_values(body, row)
        )
        if isinstance(match, dict):
            answer = yield Call("GET", f"/recipients/{match['id']}")
            return Confirmed({"recipient": answer["recipient"]}, object_id=match["id"])
        return match

    return read_outcome


NAME_FIELDS = {"business": ("name",), "individual": ("firstName", "lastName")}
"""The required fields that make up a name, by the type of the recipient."""


def select_recipient_match_fields(body: JSONObject) -> dict[str, JSON]:
    names = ("email", "type", "referenceId", *NAME_FIELDS[str(body.get("type"))])
    return {name: body.get(name) for name in names}


def _drop_default_reference(row: dict[str, JSON]) -> dict[str, JSON]:
    """Drops a reference that the service itself gave: the recipient's own id."""
    return {**row, "referenceId": None} if row.get("referenceId") == row.get("id") else row


def _has_compatible_values(values: JSONObject, row: JSONObject) -> bool:
    return all(is_shown_value_compatible(value, row.get(name)) for name, value in values.items())


def fetch_recipient_if_exists(recipient_id: str) -> Generator[Step, Any, JSONObject | None]:
    """Calls GET /recipients/:id; None if the service does not have the recipient."""
    body = yield from fetch_if_exists(f"/recipients/{recipient_id}", needs_proof=True)
    return None if body is None else body["recipient"]


def build_recipient_update_call(
    recipient_id: str,
    fields: JSONObject,
    field_map: Mapping[str, str],
    old_recipient: JSONObject = MappingProxyType({}),
) -> Call:
    """Builds the call of PATCH /recipients/:id; its outcome rule reads GET /recipients/:id.

    An update that looks like ``old_recipient``, behind its masks, is absent: sending it again does
    no harm. An operator's word outweighs it, because the service may normalize values.
    """
    path = f"/recipients/{recipient_id}"

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        recipient = (yield Call("GET", path))["recipient"]
        is_shown = _has_compatible_values(fields, recipient)
        is_older = is_view_older(recipient, old_recipient)
        is_evidence = is_shown and not (is_older or _has_compatible_values(fields, old_recipient))
        is_executed = is_evidence or write.is_confirmed_by_operator
        return Confirmed({"recipient": recipient}) if is_executed else Absent()

    return Call("PATCH", path, fields, field_map=field_map, reconcile=read_outcome)


def build_recipients_deletion_outcome_rule(*ids: str) -> OutcomeRule:
    """Builds the rule of a deletion; it reads GET /recipients/:id for each id."""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        answers = yield Parallel([Call("GET", f"/recipients/{id_}") for id_ in ids])
        deletions = [_is_recipient_deletion_shown(answer) for answer in answers]
        if None in deletions:  # one of the reads failed
            return Inconclusive("the service could not be read")
        if all(deletions):
            return Confirmed()
        if any(deletions):
            return Inconclusive("only some of the recipients are deleted")
        return Absent(is_old_state_shown=True)

    return read_outcome


def _is_recipient_deletion_shown(answer: Any) -> bool | None:
    if isinstance(answer, Refused):
        return True if answer.is_not_found else None
    if isinstance(answer, Exception):
        return None
    return bool(answer["recipient"].get("status") == "archived")


def build_account_creation_outcome_rule(
    recipient_id: str, fields: JSONObject, ids_before: Iterable[str]
) -> OutcomeRule:
    """Builds the rule of an account create; it reads GET /recipients/:id."""
    known_ids, match_fields = frozenset(ids_before), _drop_bank_address(fields)

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        accounts = yield from _fetch_accounts(recipient_id)
        # Accounts have no date: a new one is one that was not there before.
        other_ids = known_ids | (yield from _load_old_account_ids(recipient_id))
        new_accounts = [each for each in accounts if each.get(_ACCOUNT_ID) not in other_ids]
        new_accounts = [each for each in new_accounts if is_matching_account(match_fields, each)]
        if (named_id := write.operator_object_id) is not None:
            named_accounts = (each for each in new_accounts if each.get(_ACCOUNT_ID) == named_id)
            return confirm_operator_named_object(named_id, "account", next(named_accounts, None))
        match = select_created_object(new_accounts, write, id_key=_ACCOUNT_ID, is_dated=False)
        if isinstance(match, dict):
            return Confirmed({"account": match}, object_id=match[_ACCOUNT_ID])
        return match

    return read_outcome


_ACCOUNT_ID = "recipientAccountId"
_STABLE_FIELDS = ("type", "country", "currency", "accountHolderName")
"""Fields of an account that a change of others leaves as they are."""


def build_account_change_call(
    recipient_id: str,
    old_account: JSONObject,
    fields: JSONObject,
    accounts_before: Iterable[JSONObject],
    field_map: Mapping[str, str] = MappingProxyType({}),
) -> Call:
    """Builds the call of PATCH /recipients/:id/accounts/:account; its rule reads the recipient.

    The change gives the account another id (current interface, section 4.2), which none of
    ``accounts_before`` has, those that the recipient had before it.
    """
    account_id = old_account[_ACCOUNT_ID]
    known_ids = frozenset(each.get(_ACCOUNT_ID) for each in accounts_before)

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        accounts = yield from _fetch_accounts(recipient_id)
        for account in accounts:
            if account.get(_ACCOUNT_ID) == account_id:
                if not is_matching_account(fields, account):
                    return Absent(is_old_state_shown=True)
                # A masked number that ends like the new one was shown before the change, too.
                if is_matching_account(fields, old_account):
                    return Absent()
                # It may have been the primary one before others were changed, which have new ids.
                shown_ids = {each.get(_ACCOUNT_ID) for each in accounts}
                if write.is_recent and not known_ids <= shown_ids:
                    return Inconclusive("the service may show the account as it was before")
                return Confirmed({"account": account})
        # The account has another id after the change, so it is found by its fields: also by those
        # that stay, because numbers are masked.
        expected_fields = {name: old_account.get(name) for name in _STABLE_FIELDS}
        expected_fields |= _drop_bank_address(fields)
        old_ids = yield from _load_old_account_ids(recipient_id)
        matches = [
            each
            for each in accounts
            if each.get(_ACCOUNT_ID) not in known_ids | old_ids
            and is_matching_account(expected_fields, each)
        ]
        if len(matches) == 1:
            return Confirmed({"account": matches[0]}, object_id=matches[0][_ACCOUNT_ID])
        if account_id in old_ids:
            return Absent()  # the recipient was shown late, and the service has refused the write
        return Inconclusive("the account no longer exists")

    path = f"/recipients/{recipient_id}/accounts/{account_id}"
    return Call("PATCH", path, fields, field_map=field_map, reconcile=read_outcome)


def build_account_deletion_call(recipient_id: str, account: JSONObject) -> Call:
    """Builds the call of DELETE /recipients/:id/accounts/:account; its rule reads the recipient."""
    account_id = account[_ACCOUNT_ID]

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        accounts = yield from _fetch_accounts(recipient_id)
        is_present = any(each.get(_ACCOUNT_ID) == account_id for each in accounts)
        return Absent(is_old_state_shown=True) if is_present else Confirmed({"object": "deleted"})

    path = f"/recipients/{recipient_id}/accounts/{account_id}"
    return Call("DELETE", path, reconcile=read_outcome)


def _fetch_accounts(recipient_id: str) -> Generator[Step, Any, list[dict[str, JSON]]]:
    # The recipient may have been deleted since, and its accounts with it.
    recipient = yield from fetch_recipient_if_exists(recipient_id)
    return list((recipient or {}).get("accounts") or [])


def _load_old_account_ids(recipient_id: str) -> Generator[Step, Any, set[str]]:
    """Loads the ids of accounts that were changed or deleted within the last minute.

    A change gives an account another id; the service may still show it as it was before.
    """
    changes = yield LoadFacts("changed", ids=(recipient_id,))
    return {path.rpartition("/")[2] for path in changes}


_BANK_ADDRESS = frozenset({"bankAddress", "bankCity", "bankRegion", "bankPostalCode"})


def _drop_bank_address(fields: JSONObject) -> dict[str, JSON]:
    """Drops what the service may normalize: it takes the name of a region and shows its code."""
    return {name: value for name, value in fields.items() if name not in _BANK_ADDRESS}


def is_matching_account(fields: JSONObject, account: JSONObject) -> bool:
    """Whether the service may show an account with these fields as ``account``."""
    shown_names = {**fields, "bankRegionCode": fields.get("bankRegion")}
    shown_names.pop("bankRegion", None)
    return all(
        is_shown_value_compatible(value, account.get(name))
        for name, value in shown_names.items()
        if value
    )
