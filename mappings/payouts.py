"""The payout object of a recipient, and the recipient accounts that it becomes.

Pieces of conversation that several operations carry on: create and update of a recipient, and the
payout methods' own. Each checks everything first and raises ``Invalid``; then come the calls.
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
    """A payout object as a client sent it, checked; ``place`` is what its fields stand below."""

    place: str
    method: str | None
    currency: str | None
    bank: Mapping[str, JSON] | None
    wallet: Mapping[str, JSON] | None
    holds: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    told: frozenset[str | None] = frozenset()
    """The fields that were refused for what stood in them, and taken out."""
    is_sent_back: bool = False
    """Whether a mask that answers show of the bank account stood in it."""

    def sent(self, method: str) -> Mapping[str, JSON] | None:
        return self.bank if method == legacy.BANK else self.wallet

    @property
    def methods(self) -> list[str]:
        """The methods that accounts were sent for, the primary one first."""
        given = [method for method in ACCOUNT_TYPES if self.sent(method) is not None]
        return sorted(given, key=lambda method: method != self.method)

    def account_place(self, method: str) -> str:
        return f"{self.place}accounts.{method}."


def parse_payout(
    body: Mapping[str, JSON] | None, place: str, problems: Sequence[Problem] = ()
) -> Payout:
    """``place`` is empty for a body of its own, ``payout.`` inside a recipient."""
    body = body or {}
    primary, accounts = body.get("primary") or {}, body.get("accounts") or {}
    method = primary.get("method")
    told = frozenset(problem.field for problem in problems)

    def account(name: str) -> Mapping[str, JSON] | None:
        its = given(accounts.get(name))
        # Typed clients send the accounts that they do not use, too, with nothing in their fields. What
        # could not be read is not in one any more, and was something all the same.
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
    """The payout without masks that are just what answers show: a client that read sends them back.

    What they stand for stays as it is, and a new account has to be told anew.
    """
    if not payout.bank:
        return payout
    account = select_shown_accounts(recipient).get(current.BANK_TRANSFER) or {}
    shown = build_bank_answer(account, recipient) if account else {}
    # It is the recipient's: one of another country was shown with the account that was there then.
    country = payout.bank.get("country") or account.get("country")
    shown["governmentId"] = find_masked_government_id(recipient, country)
    dropped = {
        name for name, value in payout.bank.items() if is_mask(value) and value == shown.get(name)
    }
    bank = {name: value for name, value in payout.bank.items() if name not in dropped}
    return replace(payout, bank=bank, is_sent_back=bool(dropped - {"governmentId"}))


def given(sent: Mapping[str, JSON] | None) -> dict[str, JSON] | None:
    """An object without its nulls: typed clients send every field of an account that they know."""
    if sent is None:
        return None
    return {name: value for name, value in sent.items() if value is not None}


# New accounts: a create with a payout, and POST payout-methods


@dataclass(frozen=True, slots=True)
class Plan:
    """Accounts to create, the primary one first, each with the names of its fields.

    ``currency`` is the one that a wallet is to have: its account is made without.
    """

    accounts: tuple[tuple[dict[str, JSON], dict[str, str]], ...]
    currency: str | None = None


def resolve_primary_method(payout: Payout) -> str | None:
    """The method named, or the only one that an account was sent for."""
    return payout.method or (payout.methods[0] if len(payout.methods) == 1 else None)


def validate_new_payout(payout: Payout, recipient: Recipient) -> Iterator[Problem]:
    """What is wrong with a payout of new accounts.

    ``recipient`` needs no more than ``type`` and ``governmentIds``.
    """
    yield from validate_primary_method(payout)
    for sent in payout.methods:
        yield from validate_account(payout, sent, recipient)


def validate_primary_method(payout: Payout) -> Iterator[Problem]:
    """What is wrong with the primary method of a payout of new accounts."""
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
    """The accounts that these methods of a payout without problems become."""
    accounts = []
    for method in methods:
        account = {**build_account_body(payout, method, recipient), "primary": method == primary}
        accounts.append((account, map_account_fields(payout, method)))
    return Plan(tuple(accounts), payout.currency)


def build_unknown_method_problem(payout: Payout) -> Problem:
    return invalid(f"{payout.place}primary.method", "must be a payout method that can be set up")


def validate_account(payout: Payout, method: str, recipient: Recipient) -> Iterator[Problem]:
    """What is wrong with one whole account."""
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
    """Masked values, other than the ones shown: what stands behind them is not known here."""
    for name in sorted(MASKABLE & sent.keys()):
        if is_mask(sent[name]):
            yield invalid(
                place + name, "is a masked value that is not the one shown; send it whole"
            )


def build_account_body(payout: Payout, method: str, recipient: Recipient) -> dict[str, JSON]:
    """The body of POST ``/recipients/:id/accounts`` (current interface, section 4.2)."""
    if method == legacy.WALLET:
        return {"type": current.WALLET, **WALLET.to_current(payout.wallet or {})}
    bank = payout.bank or {}
    account = {"type": current.BANK_TRANSFER, **translate_bank_account(bank)}
    account.setdefault("currency", payout.currency)
    account.setdefault("accountHolderName", derive_account_holder(recipient))
    return account


def translate_bank_account(bank: Mapping[str, JSON], shown_branch: JSON = None) -> dict[str, JSON]:
    """The fields of ``accounts.bank`` that a client gave, as the current interface has them."""
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
    """Who an account belongs to where the client does not say: the recipient."""
    parts = [recipient.get("firstName"), recipient.get("lastName")]
    if recipient.get("type") == "individual" and all(parts):
        return " ".join(map(str, parts))  # as the service makes an individual's name
    return recipient.get("name")


def map_account_fields(payout: Payout, method: str, country: JSON = None) -> dict[str, str]:
    """Account field to the client's own, for ``sent_as``; ``country`` where the client sent none."""
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
    # What a bank transfer wants of the recipient; an address came where the recipient did.
    told["governmentIds"] = f"{place}governmentId"
    return {**told, **_OF_THE_ADDRESS} if payout.place else told


_OF_THE_ADDRESS = {f"address.{name}": field for name, field in ADDRESS.sent_as("address.").items()}


def extract_government_ids(payout: Payout) -> list[Sent]:
    """The government id that came with a bank account."""
    bank = payout.bank or {}
    value, country = bank.get("governmentId"), bank.get("country")
    if not value or not country:
        return []
    return [Sent(country, value, f"{payout.account_place(legacy.BANK)}governmentId")]


def send_account(call: Call, country: JSON, manners: LegacyOptions) -> Sub:
    """Makes a call with an account, once more where the country wants the number in its IBAN.

    Returns the account. ``accountNum`` never holds an IBAN: a client that sent an IBAN alone has
    it sent alone, and only a service that says it misses the number gets the domestic one.
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
    """Adds the accounts of a plan; then each takes the place of the one clients saw of its type.

    Returns the recipient as it then is. When one is refused, those before it are taken back,
    unless the caller takes back the ``whole`` recipient. An old account that cannot be deleted
    stays as one that is not primary, and nothing is lost.
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
    except (Refused, Unreachable):
        if not whole:
            yield from _take_back(before, added)
        raise
    shown = select_shown_accounts(before)
    replaced = [shown[account["type"]] for account in added if account["type"] in shown]
    for account in replaced:
        with suppress(Failure):
            yield from _where_it_is(before, added, account, _deletion)
    return replace_accounts(recipient, added, replaced)


def _in_currency(
    recipient: Recipient, wallet: dict[str, JSON], currency: JSON, sent_as: dict[str, str]
) -> Sub:
    """PATCH /recipients/:id/accounts/:account, where the service took another currency for it.

    Returns what is different of it then.
    """
    if not currency or wallet.get("currency") in (None, currency):
        return {}
    fields = {"currency": currency}
    settle = settling.settle_changed_account(recipient["id"], wallet, fields)
    path = build_account_path(recipient["id"], wallet)
    answered = yield Call("PATCH", path, fields, sent_as=sent_as, settle=settle)
    return {**fields, **answered.get("account", {})}


def _take_back(recipient: Recipient, added: list[dict[str, JSON]]) -> Sub:
    """Deletes accounts just added, and has the one be primary again that was."""
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
    """Makes a call of an account that was there before; once more where it has just got another id.

    Every change gives it one, and to be the primary one no longer may be such a change.
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
    """The recipient with these accounts for those."""
    kept = [account for account in recipient.get("accounts") or [] if account not in replaced]
    if any(account["primary"] for account in added):
        kept = [{**account, "primary": False} for account in kept]
    return {**recipient, "accounts": [*kept, *added]}


def build_account_path(recipient_id: str, account: Mapping[str, JSON]) -> str:
    return f"/recipients/{recipient_id}/accounts/{account['recipientAccountId']}"


# autoswitch and holdup: remembered, not carried out


def collect_new_holds(payout: Payout, facts: Facts) -> dict[str, JSON]:
    """What is to be remembered: what was sent and is not what was shown."""
    changed: dict[str, JSON] = {}
    for name, hold in payout.holds.items():
        shown = build_hold_answer(facts, name)
        if {**shown, **hold} != shown:
            changed[name] = {**shown, **hold}
    return changed


def validate_holds(payout: Payout, facts: Facts, manners: LegacyOptions) -> Iterator[Problem]:
    """An active hold asks for what the gateway cannot do; an operator may want it refused."""
    for name, hold in collect_new_holds(payout, facts).items():
        if hold["active"] and manners.holdup == "refuse":
            yield invalid(f"{payout.place}{name}.active", "is not supported")


def build_hold_notices(changed: Mapping[str, JSON]) -> tuple[str, ...]:
    return tuple(
        f"{name} was asked for; payouts to this recipient are not held"
        for name, hold in changed.items()
        if hold["active"]
    )
