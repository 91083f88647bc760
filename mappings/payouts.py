"""Translation of a payout object into recipient accounts.

The parts of flows that creating and updating a recipient share with the payout methods. A flow
validates everything and raises ``Invalid`` before its first write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mappings import banking, current, legacy, settling
from mappings.banking import empty, invalid
from mappings.government_ids import Sent
from mappings.grammar import (
    JSON,
    Call,
    Failure,
    LegacyOptions,
    Problem,
    Recall,
    Record,
    Refused,
    Step,
    Unreachable,
)
from mappings.kinds import is_mask
from mappings.objects import (
    ACCOUNT_TYPES,
    ADDRESS,
    BANK,
    WALLET,
    Facts,
    build_bank_answer,
    build_hold_answer,
    find_masked_government_id,
    find_primary_account,
    select_shown_accounts,
)

Recipient = Mapping[str, JSON]
Sub = Generator[Step, Any, Any]


@dataclass(frozen=True, slots=True)
class Payout:
    """A validated payout object of a client; ``prefix`` is the path of its fields."""

    place: str
    method: str | None
    currency: str | None
    bank: Mapping[str, JSON] | None
    wallet: Mapping[str, JSON] | None
    holds: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    told: frozenset[str | None] = frozenset()
    """Fields whose values were invalid and therefore removed."""
    is_sent_back: bool = False
    """Whether it contained a mask from an answer, so that the client means the existing account."""

    def sent(self, method: str) -> Mapping[str, JSON] | None:
        return self.bank if method == legacy.BANK else self.wallet

    @property
    def methods(self) -> list[str]:
        """The methods of the accounts that were sent, the primary one first."""
        given = [method for method in ACCOUNT_TYPES if self.sent(method) is not None]
        return sorted(given, key=lambda method: method != self.method)

    def account_place(self, method: str) -> str:
        return f"{self.place}accounts.{method}."


def parse_payout(
    body: Mapping[str, JSON] | None, place: str, problems: Sequence[Problem] = ()
) -> Payout:
    """Parses a payout object. ``prefix`` is ``payout.`` inside a recipient, else empty."""
    body = body or {}
    primary, accounts = body.get("primary") or {}, body.get("accounts") or {}
    method = primary.get("method")
    told = frozenset(problem.field for problem in problems)

    def account(name: str) -> Mapping[str, JSON] | None:
        its = given(accounts.get(name))
        # Typed clients also send the accounts that they do not use, with all fields null. An
        # account whose only values were invalid is empty here too, but must not be ignored.
        had = any(field and field.startswith(f"{place}accounts.{name}.") for field in told)
        return its if its or had or method == name else None

    holds = {name: given(body[name]) for name in ("autoswitch", "holdup") if body.get(name)}
    return Payout(
        place,
        method,
        primary.get("currency"),
        account(legacy.BANK),
        account(legacy.WALLET),
        {name: hold for name, hold in holds.items() if hold},
        told,
    )


def drop_shown_masks(payout: Payout, recipient: Recipient) -> Payout:
    """Drops the masks from answers that clients send back; the values behind them stay."""
    if not payout.bank:
        return payout
    account = select_shown_accounts(recipient).get(current.BANK_TRANSFER) or {}
    shown = build_bank_answer(account, recipient) if account else {}
    # The government id belongs to the recipient, so its mask can come from an account that has been
    # replaced since by one in another country.
    country = payout.bank.get("country") or account.get("country")
    shown["governmentId"] = find_masked_government_id(recipient, country)
    dropped = {
        name for name, value in payout.bank.items() if is_mask(value) and value == shown.get(name)
    }
    bank = {name: value for name, value in payout.bank.items() if name not in dropped}
    return replace(payout, bank=bank, is_sent_back=bool(dropped - {"governmentId"}))


def given(sent: Mapping[str, JSON] | None) -> dict[str, JSON] | None:
    """Drops null fields: typed clients send all fields of an account that they know."""
    if sent is None:
        return None
    return {name: value for name, value in sent.items() if value is not None}


# New accounts: creating a recipient with a payout, and POST payout-methods


@dataclass(frozen=True, slots=True)
class Plan:
    """Accounts to create with their field maps, primary first; a wallet gets its currency later."""

    accounts: tuple[tuple[dict[str, JSON], dict[str, str]], ...]
    currency: str | None = None


def resolve_primary_method(payout: Payout) -> str | None:
    """Returns the named primary method, else the only method that has an account."""
    return payout.method or (payout.methods[0] if len(payout.methods) == 1 else None)


def validate_new_payout(payout: Payout, recipient: Recipient) -> Iterator[Problem]:
    """Validates a payout of new accounts; of ``recipient`` it reads type and government ids."""
    yield from validate_primary_method(payout)
    for sent in payout.methods:
        yield from validate_account(payout, sent, recipient)


def validate_primary_method(payout: Payout) -> Iterator[Problem]:
    """Validates the primary method of a payout of new accounts."""
    method = resolve_primary_method(payout)
    if method is None:
        yield empty(f"{payout.place}primary.method")
    elif method not in ACCOUNT_TYPES:
        yield build_unknown_method_problem(payout)
    elif payout.sent(method) is None:
        yield empty(f"{payout.place}accounts.{method}")


def plan_accounts(
    payout: Payout, recipient: Recipient, methods: list[str], primary: str | None
) -> Plan:
    """Plans the accounts for these methods of a valid payout."""
    accounts = []
    for method in methods:
        account = {**build_account_body(payout, method, recipient), "primary": method == primary}
        accounts.append((account, map_account_fields(payout, method)))
    return Plan(tuple(accounts), payout.currency)


def build_unknown_method_problem(payout: Payout) -> Problem:
    return invalid(f"{payout.place}primary.method", "must be a payout method that can be set up")


def validate_account(payout: Payout, method: str, recipient: Recipient) -> Iterator[Problem]:
    """Validates one complete account."""
    place, sent = payout.account_place(method), payout.sent(method) or {}
    if method == legacy.WALLET:
        if not sent.get("address"):
            yield empty(f"{place}address")
        return
    held = find_masked_government_id(recipient, sent.get("country"))
    yield from validate_masks(sent, place)
    yield from banking.validate_bank_account(sent, place)
    yield from banking.validate_government_id(sent, recipient.get("type"), place, held)
    told = {f"{place}currency", f"{payout.place}primary.currency"} & payout.told
    if not (sent.get("currency") or payout.currency or told):
        yield empty(f"{payout.place}primary.currency")


MASKABLE = frozenset(
    {"ssn", "passport", "governmentId", "accountNum", "iban", "routing", "branchNum", "institution"}
)


def validate_masks(sent: Mapping[str, JSON], place: str) -> Iterator[Problem]:
    """Refuses masked values that answers did not show: the gateway does not know their values."""
    for name in sorted(MASKABLE & sent.keys()):
        if is_mask(sent[name]):
            yield invalid(
                place + name, "is a masked value that is not the one shown; send it whole"
            )


def build_account_body(payout: Payout, method: str, recipient: Recipient) -> dict[str, JSON]:
    """Builds the body of POST ``/recipients/:id/accounts`` (current interface, section 4.2)."""
    if method == legacy.WALLET:
        return {"type": current.WALLET, **WALLET.to_current(payout.wallet or {})}
    bank = payout.bank or {}
    account = {"type": current.BANK_TRANSFER, **translate_bank_account(bank)}
    # setdefault: fields inside the account take precedence over those of the payout.
    account.setdefault("currency", payout.currency)
    account.setdefault("accountHolderName", derive_account_holder(recipient))
    return account


def translate_bank_account(bank: Mapping[str, JSON], shown_branch: JSON = None) -> dict[str, JSON]:
    """Translates the fields of ``accounts.bank`` that the client sent."""
    account = BANK.to_current(bank)
    if iban := account.get("iban"):
        account["iban"] = banking.normalize_iban(iban)
    if branch := banking.resolve_branch(bank, shown_branch):
        rule = banking.BRANCHES.get(str(bank.get("country")))
        account["branchId"] = rule.bare(branch) if rule else branch
    if bank.get("country") == "CA" and bank.get("institution"):
        account["bankId"] = banking.INSTITUTION.bare(bank["institution"])
    if bank.get("bankRegion"):
        account.setdefault("bankRegion", bank["bankRegion"])
    return account


def derive_account_holder(recipient: Recipient) -> JSON:
    """Returns the default account holder: the name of the recipient."""
    parts = [recipient.get("firstName"), recipient.get("lastName")]
    if recipient.get("type") == "individual" and all(parts):
        return " ".join(map(str, parts))  # The service derives an individual's name the same way.
    return recipient.get("name")


def map_account_fields(payout: Payout, method: str, country: JSON = None) -> dict[str, str]:
    """Maps account fields to the client's own; ``country`` is the default if it sent none."""
    place = payout.account_place(method)
    if method == legacy.WALLET:
        primary = f"{payout.place}primary."
        told = {"type": f"{primary}method", "currency": f"{primary}currency"}
        return {**WALLET.sent_as(place), **told}
    bank = {"country": country, **(payout.bank or {})}
    told = BANK.sent_as(place)
    if bank.get("bankRegion") and not bank.get("bankProvince"):
        told["bankRegion"] = f"{place}bankRegion"
    told["branchId"] = place + banking.choose_branch_field(bank)
    told["type"] = f"{payout.place}primary.method"
    if not bank.get("currency"):
        told["currency"] = f"{payout.place}primary.currency"
    if bank.get("iban") and not bank.get("accountNum"):
        told["accountNum"] = f"{place}iban"
    # A bank transfer also has requirements on fields of the recipient, which errors may name.
    told["governmentIds"] = f"{place}governmentId"
    return {**told, **_OF_THE_ADDRESS} if payout.place else told


_OF_THE_ADDRESS = {f"address.{name}": field for name, field in ADDRESS.sent_as("address.").items()}


def extract_government_ids(payout: Payout) -> list[Sent]:
    """Returns the government id that was sent with the bank account, if any."""
    bank = payout.bank or {}
    value, country = bank.get("governmentId"), bank.get("country")
    if not value or not country:
        return []
    return [Sent(country, value, f"{payout.account_place(legacy.BANK)}governmentId")]


def send_account(call: Call, country: JSON, manners: LegacyOptions) -> Sub:
    """Sends an account; if the service misses the account number, sends it again with the number.

    Returns the account. ``accountNum`` never contains an IBAN. If the client sent only an IBAN, the
    gateway first sends only that, and adds the domestic number from it if the service asks for one.
    The country is then remembered, which saves the refused call.
    """
    number = _number_from_iban(call.body, manners)
    if number is None:
        return (yield call).get("account", {})
    whole = replace(call, body={**call.body, "accountNum": number})
    known = manners.account_number_from_iban == "always" or (yield Recall("country", country))
    if not known:
        try:
            return (yield call).get("account", {})
        except Refused as refused:
            if not refused.names("empty_field", "accountNum"):
                raise
    sent = yield whole
    if not known:
        yield Record("country", country, {"account_number": True})
    return sent.get("account", {})


def _number_from_iban(account: Mapping[str, JSON], manners: LegacyOptions) -> str | None:
    iban = account.get("iban")
    if not iban or account.get("accountNum") or manners.account_number_from_iban == "never":
        return None
    return banking.extract_account_number(iban)


def add_planned_accounts(
    recipient: Recipient, planned: Plan, manners: LegacyOptions, *, whole: bool = False
) -> Sub:
    """Adds the planned accounts, then deletes the accounts that they replace.

    Returns the recipient with its new accounts. If an account is refused, the ones already added
    are deleted, unless the caller deletes the whole recipient (``is_undone_by_caller``). An old
    account that cannot be deleted remains as a non-primary account, which does no harm.
    """
    before = recipient
    added: list[dict[str, JSON]] = []
    try:
        for account, sent_as in planned.accounts:
            path = f"/recipients/{recipient['id']}/accounts"
            there = [*(before.get("accounts") or []), *added]
            settle = settling.settle_added_account(
                recipient["id"], account, collect_account_ids(there)
            )
            call = Call("POST", path, account, sent_as=sent_as, settle=settle)
            answered = yield from send_account(call, account.get("country"), manners)
            added.append({**account, **answered})
            if account["type"] == current.WALLET:
                added[-1] |= yield from _in_currency(
                    recipient, added[-1], planned.currency, sent_as
                )
    # Not after Unknown: the account may exist, and reconciliation decides that first.
    except (Refused, Unreachable):
        if not whole:
            yield from _take_back(before, added)
        raise
    shown = select_shown_accounts(before)
    replaced = [shown[account["type"]] for account in added if account["type"] in shown]
    # The new accounts exist, so the request has succeeded: a failed deletion must not change that.
    for account in replaced:
        with suppress(Failure):
            yield from _where_it_is(before, added, account, _deletion)
    return replace_accounts(recipient, added, replaced)


def _in_currency(
    recipient: Recipient, wallet: dict[str, JSON], currency: JSON, sent_as: dict[str, str]
) -> Sub:
    """Changes the currency of a wallet if the service chose another; returns the changed fields."""
    if not currency or wallet.get("currency") in (None, currency):
        return {}
    fields = {"currency": currency}
    settle = settling.settle_changed_account(recipient["id"], wallet, fields)
    path = build_account_path(recipient["id"], wallet)
    answered = yield Call("PATCH", path, fields, sent_as=sent_as, settle=settle)
    return {**fields, **answered.get("account", {})}


def _take_back(recipient: Recipient, added: list[dict[str, JSON]]) -> Sub:
    """Deletes the accounts just added and makes the previous primary account primary again."""
    # Best effort: the client gets the error that caused the undo, not one of the undo itself.
    with suppress(Failure):
        for account in added:
            yield _deletion(recipient["id"], account)
        was = find_primary_account(recipient)
        if was and any(account["primary"] for account in added):
            yield from _where_it_is(recipient, added, was, _promotion)


def _where_it_is(
    before: Recipient,
    added: list[dict[str, JSON]],
    account: Mapping[str, JSON],
    call: Callable[[str, Mapping[str, JSON]], Call],
) -> Sub:
    """Calls the service for an existing account, again with its new id if the id has changed.

    Every change of an account changes its id, and losing the primary flag may be such a change.
    """
    try:
        yield call(before["id"], account)
    except Refused as refused:
        if refused.status != 404:
            raise
        fresh = (yield Call("GET", f"/recipients/{before['id']}"))["recipient"]
        its, known = (
            _but_its_id(account),
            collect_account_ids([*(before.get("accounts") or []), *added]),
        )
        renamed = [
            one
            for one in fresh.get("accounts") or []
            if one.get("recipientAccountId") not in known
            and not one.get("primary")
            and _but_its_id(one) == its
        ]
        # With several candidates the wrong account could be deleted; none is better than that.
        if len(renamed) == 1:
            yield call(before["id"], renamed[0])


def _but_its_id(account: Mapping[str, JSON]) -> dict[str, JSON]:
    changing = ("recipientAccountId", "primary")
    return {name: value for name, value in account.items() if name not in changing}


def _promotion(recipient_id: str, account: Mapping[str, JSON]) -> Call:
    fields = {"primary": True}
    settle = settling.settle_changed_account(recipient_id, account, fields)
    return Call("PATCH", build_account_path(recipient_id, account), fields, settle=settle)


def _deletion(recipient_id: str, account: Mapping[str, JSON]) -> Call:
    settle = settling.settle_deleted_account(recipient_id, account["recipientAccountId"])
    return Call("DELETE", build_account_path(recipient_id, account), settle=settle, is_cleanup=True)


def collect_account_ids(accounts: Sequence[Mapping[str, JSON]]) -> list[str]:
    return [one["recipientAccountId"] for one in accounts if one.get("recipientAccountId")]


def replace_accounts(
    recipient: Recipient, added: list[dict[str, JSON]], replaced: Sequence[Mapping[str, JSON]]
) -> Recipient:
    """Returns the recipient with the old accounts replaced by the new ones."""
    kept = [account for account in recipient.get("accounts") or [] if account not in replaced]
    if any(account["primary"] for account in added):
        kept = [{**account, "primary": False} for account in kept]
    return {**recipient, "accounts": [*kept, *added]}


def build_account_path(recipient_id: str, account: Mapping[str, JSON]) -> str:
    return f"/recipients/{recipient_id}/accounts/{account['recipientAccountId']}"


# autoswitch and holdup: stored, but without effect


def collect_new_holds(payout: Payout, facts: Facts) -> dict[str, JSON]:
    """Collects the holds to store: those that the client changed."""
    changed: dict[str, JSON] = {}
    for name, hold in payout.holds.items():
        shown = build_hold_answer(facts, name)
        if {**shown, **hold} != shown:
            changed[name] = {**shown, **hold}
    return changed


def validate_holds(payout: Payout, facts: Facts, manners: LegacyOptions) -> Iterator[Problem]:
    """Refuses active holds if the operator wants it: the gateway cannot hold payouts."""
    for name, hold in collect_new_holds(payout, facts).items():
        if hold["active"] and manners.holdup == "refuse":
            yield invalid(f"{payout.place}{name}.active", "is not supported")


def build_hold_notices(changed: Mapping[str, JSON]) -> tuple[str, ...]:
    return tuple(
        f"{name} was requested; payouts to this recipient are not held"
        for name, hold in changed.items()
        if hold["active"]
    )
