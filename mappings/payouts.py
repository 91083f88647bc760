"""Translates a payout object into recipient accounts.

Creating and updating a recipient and the payout methods share these parts of flows. A flow
validates everything and raises ``Invalid`` before its first write.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from operator import attrgetter

import msgspec
from msgspec import structs

from mappings import banking, current, legacy, recipient_outcomes
from mappings.effects import JSON, Call, CompareAndSet, LegacyOptions, LoadFacts, SubFlow
from mappings.failures import (
    Failure,
    Problem,
    Refused,
    build_empty_field_problem,
    build_invalid_field_problem,
)
from mappings.field_types import is_masked_value
from mappings.objects import (
    ACCOUNT_TYPE_BY_METHOD,
    ADDRESS,
    BANK,
    WALLET,
    build_legacy_bank,
    drop_nulls,
    find_masked_government_id,
    find_primary_account,
    map_shown_accounts_by_type,
)
from mappings.outcome_matching import defer_confirmation

Recipient = Mapping[str, JSON]


class Payout(msgspec.Struct, frozen=True):
    """A validated payout object of a client; ``prefix`` is the path of its fields.

    ``accounts`` are those that were sent, by method, the primary one first.
    """

    prefix: str
    method: str | None
    currency: str | None
    accounts: Mapping[str, Mapping[str, JSON]]
    holds: Mapping[str, Mapping[str, JSON]] = {}
    refused_fields: frozenset[str | None] = frozenset()
    """Fields whose values were invalid and therefore removed."""
    nested_currency: str | None = None
    """The code of the second form of ``primary.currency``, if it differs from ``currency``."""
    methods_with_mask: frozenset[str] = frozenset()
    """Methods whose account contained a mask from an answer, so that the client means that one."""

    def build_account_field_prefix(self, method: str) -> str:
        return f"{self.prefix}accounts.{method}."


def parse_payout(
    body: Mapping[str, JSON] | None, prefix: str, problems: Sequence[Problem], recipient: Recipient
) -> Payout:
    """Parses a payout object. ``prefix`` is ``payout.`` inside a recipient, else empty.

    ``recipient`` is as the service shows it, empty before it is created.
    """
    body = body or {}
    primary, sent_accounts = body.get("primary") or {}, body.get("accounts") or {}
    method = primary.get("method")
    refused_fields = frozenset(map(attrgetter("field"), problems))

    def select_account_fields(name: str) -> Mapping[str, JSON] | None:
        if (sent := sent_accounts.get(name)) is None:
            return None
        fields = drop_nulls(sent)
        # Typed clients also send the accounts that they do not use, with all fields null. An
        # account whose only values were invalid is empty here too, but must not be ignored.
        has_refused_field = bool(refused_fields) and any(
            field and field.startswith(f"{prefix}accounts.{name}.") for field in refused_fields
        )
        return fields if fields or has_refused_field or method == name else None

    holds = {
        name: hold
        for name in ("autoswitch", "holdup")
        if body.get(name) and (hold := drop_nulls(body[name]))
    }
    accounts = {
        name: fields
        for name in sorted(ACCOUNT_TYPE_BY_METHOD, key=lambda name: name != method)
        if (fields := select_account_fields(name)) is not None
    }
    currency = primary.get("currency")
    code, nested_code = currency if isinstance(currency, list) else (currency, None)
    payout = Payout(prefix, method, code, accounts, holds, refused_fields, nested_code)
    return _drop_masks_sent_back(payout, recipient)


def _drop_masks_sent_back(payout: Payout, recipient: Recipient) -> Payout:
    """Drops the masks from answers that clients send back; the values behind them stay."""
    accounts_by_type, accounts = map_shown_accounts_by_type(recipient), dict(payout.accounts)
    methods_with_mask = set()
    for method, fields in payout.accounts.items():
        account = accounts_by_type.get(ACCOUNT_TYPE_BY_METHOD[method]) or {}
        if method == legacy.WALLET:
            answer = WALLET.translate_to_legacy(account)
        else:
            answer = build_legacy_bank(account, recipient) if account else {}
            # The government id belongs to the recipient, so its mask can come from an account that
            # has been replaced since by one in another country.
            country = fields.get("country") or account.get("country")
            answer["governmentId"] = find_masked_government_id(recipient, country)
        shown_masks = {
            name
            for name, value in fields.items()
            if value == answer.get(name)
            and is_masked_value(value)
            # Never masked; they may have an asterisk of their own.
            and name not in ("name", "bankAddress", "bankCity")
        }
        accounts[method] = {name: fields[name] for name in fields if name not in shown_masks}
        if shown_masks - {"governmentId"}:
            methods_with_mask.add(method)
    return structs.replace(
        payout, accounts=accounts, methods_with_mask=frozenset(methods_with_mask)
    )


# New and changed accounts


def validate_account(payout: Payout, method: str, recipient: Recipient) -> Iterator[Problem]:
    prefix, account = payout.build_account_field_prefix(method), payout.accounts[method]
    if method == legacy.WALLET:
        if not account.get("address"):
            yield build_empty_field_problem(f"{prefix}address")
        yield from validate_masks(account, prefix, {"address"})
        return
    masked_id = find_masked_government_id(recipient, account.get("country"))
    yield from validate_masks(account, prefix)
    yield from banking.validate_bank_account(account, prefix)
    yield from banking.validate_government_id(account, recipient.get("type"), prefix, masked_id)
    field = f"{payout.prefix}primary.currency"
    refused_fields = {f"{prefix}currency", field} & payout.refused_fields
    if not (account.get("currency") or payout.currency or refused_fields):
        yield build_empty_field_problem(field)


MASKABLE_FIELDS = frozenset(
    {"ssn", "passport", "governmentId", "accountNum", "iban", "routing", "branchNum", "institution"}
)


def validate_masks(
    fields: Mapping[str, JSON], prefix: str, names: AbstractSet[str] | None = None
) -> Iterator[Problem]:
    """Refuses masked values that answers did not show: the gateway does not know their values."""
    for name in sorted((names or MASKABLE_FIELDS) & fields.keys()):
        if is_masked_value(fields[name]):
            yield build_invalid_field_problem(
                prefix + name, "is a masked value that is not the one shown; send it whole"
            )


def build_account_body(payout: Payout, method: str, recipient: Recipient) -> dict[str, JSON]:
    """Builds the body of POST ``/recipients/:id/accounts`` (current interface, section 4.2)."""
    fields = payout.accounts[method]
    if method == legacy.WALLET:
        return {"type": current.WALLET, **WALLET.translate_to_current(fields)}
    account = {"type": current.BANK_TRANSFER, **translate_bank_account(fields)}
    # setdefault: fields inside the account take precedence over those of the payout.
    account.setdefault("currency", payout.currency)
    # Required by the current interface, optional in the legacy one (contract, section 4).
    parts = [recipient.get("firstName"), recipient.get("lastName")]
    is_individual = recipient.get("type") == "individual" and all(parts)
    # The service derives an individual's name the same way.
    name = " ".join(map(str, parts)) if is_individual else recipient.get("name")
    account.setdefault("accountHolderName", name)
    return account


def translate_bank_account(bank: Mapping[str, JSON], shown_branch: JSON = None) -> dict[str, JSON]:
    """Translates the fields of ``accounts.bank`` that the client sent."""
    account = BANK.translate_to_current(bank)
    # People write IBANs in groups of four; the service expects them without blanks.
    if iban := account.get("iban"):
        account["iban"] = banking.normalize_iban(iban)
    if branch := banking.resolve_branch_id(bank, shown_branch):
        rule = banking.BRANCH_RULES.get(str(bank.get("country")))
        account["branchId"] = rule.strip_separators(branch) if rule else branch
    # In other countries answers show the bank's name here, and clients send it back.
    if bank.get("country") == "CA" and bank.get("institution"):
        account["bankId"] = banking.INSTITUTION_RULE.strip_separators(bank["institution"])
    if bank.get("bankRegion"):
        account.setdefault("bankRegion", bank["bankRegion"])
    return account


def map_account_field_names_to_client(
    payout: Payout, method: str, country: JSON = None
) -> dict[str, str]:
    """Maps account fields to the client's own; ``country`` is the default if it sent none."""
    prefix = payout.build_account_field_prefix(method)
    if method == legacy.WALLET:
        primary_prefix = f"{payout.prefix}primary."
        field_map = {"type": f"{primary_prefix}method", "currency": f"{primary_prefix}currency"}
        return {**WALLET.map_field_names_to_client(prefix), **field_map}
    bank = {"country": country, **payout.accounts.get(legacy.BANK, {})}
    field_map = BANK.map_field_names_to_client(prefix)
    if bank.get("bankRegion") and not bank.get("bankProvince"):
        field_map["bankRegion"] = field_map["bankRegionCode"] = f"{prefix}bankRegion"
    field_map["branchId"] = prefix + banking.choose_client_branch_field(bank)
    field_map["type"] = f"{payout.prefix}primary.method"
    if not bank.get("currency"):
        field_map["currency"] = f"{payout.prefix}primary.currency"
    if bank.get("iban") and not bank.get("accountNum"):
        field_map["accountNum"] = f"{prefix}iban"
    # A bank transfer also has requirements on fields of the recipient, which errors may name.
    field_map["governmentIds"] = f"{prefix}governmentId"
    return {**_ADDRESS_FIELD_MAP, **field_map} if payout.prefix else field_map


_ADDRESS_FIELD_MAP = {
    place + name: field
    for name, field in ADDRESS.map_field_names_to_client("address.").items()
    for place in ("address.", "")
}


def send_account_with_number_retry(call: Call, country: JSON, options: LegacyOptions) -> SubFlow:
    """Sends an account; if the service misses the account number, sends it again with the number.

    Returns the account. ``accountNum`` never contains an IBAN. If the client sent only an IBAN, the
    gateway first sends only that, and adds the domestic number from it if the service asks for one.
    The country is then remembered, which saves the refused call.
    """
    iban, number = call.body.get("iban"), None
    if iban and not call.body.get("accountNum") and options.account_number_from_iban != "never":
        number = banking.extract_account_number_from_iban(iban)
    is_number_required = number is not None and (
        options.account_number_from_iban == "always" or (yield LoadFacts("country", country))
    )
    if not is_number_required:
        try:
            return extract_account((yield call))
        except Refused as refused:
            if number is None or not refused.has_field_problem("empty_field", "accountNum"):
                raise
    response = yield structs.replace(call, body={**call.body, "accountNum": number})
    if not is_number_required:
        yield CompareAndSet("country", country, {"account_number": True})
    return extract_account(response)


def extract_account(response: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the account of a response; empty if the service shows none."""
    account = response.get("account")
    return account if isinstance(account, dict) else {}


def delete_replaced_accounts(recipient: Recipient, new_accounts: list[dict[str, JSON]]) -> SubFlow:
    """Deletes the accounts that new ones replace; returns the recipient with the new ones.

    An old account that cannot be deleted remains as a non-primary account, which does no harm: the
    new accounts exist, so the request has succeeded.
    """
    visible = map_shown_accounts_by_type(recipient)
    old_accounts = [
        visible[account["type"]] for account in new_accounts if account["type"] in visible
    ]
    for account in old_accounts:
        with suppress(Failure):
            yield from _write_to_account_with_current_id(recipient, new_accounts, account)
    return replace_accounts_of_recipient(recipient, new_accounts, old_accounts)


def undo_account_writes(
    recipient: Recipient,
    new_accounts: list[dict[str, JSON]],
    changed_accounts: Sequence[tuple[Mapping[str, JSON], dict[str, JSON]]],
    refusal: Refused,
) -> SubFlow:
    """Makes the previous primary account primary again, deletes the accounts just added, and sets
    the changed ones, which are wallets, back; these are pairs of an account before and after it.

    Each call is repeated until the service confirms it, or payments would go to an account whose
    client was told that it was refused, or clients would be shown it.
    """
    written_accounts = [*new_accounts, *(after for _, after in changed_accounts)]
    primary = find_primary_account(recipient)
    is_changed = any(before is primary for before, _ in changed_accounts)
    if primary and not is_changed and any(account["primary"] for account in written_accounts):
        yield from _write_to_account_with_current_id(
            recipient, written_accounts, primary, {"primary": True}, undo_of=refusal
        )
    # The client gets the error that caused the undo, not one of the undo itself.
    for account in new_accounts:
        with suppress(Failure):
            yield from _write_to_account_with_current_id(
                recipient, new_accounts, account, undo_of=refusal
            )
    for before, after in changed_accounts:
        names = ("emailAddress", "currency")
        fields = {
            name: before.get(name)
            for name in names
            # What is behind a mask is not known, so it cannot be set back.
            if before.get(name) != after.get(name) and not is_masked_value(before.get(name))
        }
        with suppress(Failure):
            if fields:
                yield from _write_to_account_with_current_id(
                    recipient, [], after, fields, undo_of=refusal, is_primary_allowed=True
                )


def _write_to_account_with_current_id(
    original: Recipient,
    new_accounts: list[dict[str, JSON]],
    account: Mapping[str, JSON],
    fields: Mapping[str, JSON] | None = None,
    *,
    undo_of: Refused | None = None,
    is_primary_allowed: bool = False,
) -> SubFlow:
    """Changes fields of an existing account, or deletes it, with its new id if the id has changed.

    Every change of an account changes its id, and losing the primary flag may be such a change.
    The id of an account that was just added is unknown if the response did not show it.
    """

    def build_call(
        account: Mapping[str, JSON], accounts_before: Sequence[Mapping[str, JSON]]
    ) -> Call:
        if fields is None:
            call = recipient_outcomes.build_account_deletion_call(original["id"], account)
            if undo_of is None:
                return structs.replace(call, is_cleanup=True)
            return structs.replace(defer_confirmation(call), undo_of=undo_of)
        call = recipient_outcomes.build_account_change_call(
            original["id"], {**account, "primary": False}, fields, accounts_before
        )
        return structs.replace(call, undo_of=undo_of)

    previous_accounts = original.get("accounts") or []
    if account.get("recipientAccountId"):
        try:
            yield build_call(account, [*previous_accounts, *new_accounts])
        except Refused as refused:
            if refused.status != 404:
                raise
        else:
            return
    recipient = (yield Call("GET", f"/recipients/{original['id']}"))["recipient"]
    volatile = ("recipientAccountId", "primary")
    stable_fields = {name: value for name, value in account.items() if name not in volatile}
    known_ids = collect_account_ids([*previous_accounts, *new_accounts])
    candidates = [
        candidate
        for candidate in recipient.get("accounts") or []
        if candidate.get("recipientAccountId") not in known_ids
        and (is_primary_allowed or not previous_accounts or not candidate.get("primary"))
        and recipient_outcomes.is_matching_account(stable_fields, candidate)
    ]
    # With several candidates the wrong account could be deleted; none is better than that.
    if len(candidates) == 1:
        yield build_call(candidates[0], recipient["accounts"])


def collect_account_ids(accounts: Sequence[Mapping[str, JSON]]) -> list[str]:
    return [
        account["recipientAccountId"] for account in accounts if account.get("recipientAccountId")
    ]


def replace_accounts_of_recipient(
    recipient: Recipient,
    new_accounts: list[dict[str, JSON]],
    old_accounts: Sequence[Mapping[str, JSON]],
) -> Recipient:
    other_accounts = [
        account for account in recipient.get("accounts") or [] if account not in old_accounts
    ]
    if any(account["primary"] for account in new_accounts):
        other_accounts = [{**account, "primary": False} for account in other_accounts]
    return {**recipient, "accounts": [*other_accounts, *new_accounts]}
