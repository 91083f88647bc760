"""Changes of the payout of an existing recipient, and the calls that they need.

Clients send whole objects back. Values equal to those in answers, in particular masks, are not
sent; the remaining ones update the account that was shown, or create a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mappings import banking, legacy, settling
from mappings.banking import empty
from mappings.government_ids import Sent
from mappings.grammar import JSON, Call, LegacyOptions, Problem, Refused
from mappings.objects import (
    ACCOUNT_TYPES,
    WALLET,
    build_bank_answer,
    determine_account_method,
    determine_shown_currency,
    find_primary_account,
    select_shown_accounts,
)
from mappings.payouts import (
    Payout,
    Plan,
    Recipient,
    Sub,
    add_planned_accounts,
    build_account_path,
    build_unknown_method_problem,
    extract_government_ids,
    map_account_fields,
    plan_accounts,
    replace_accounts,
    send_account,
    translate_bank_account,
    validate_account,
    validate_masks,
    validate_primary_method,
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a recipient's accounts that a client's payout asks for.

    ``is_replacement`` is for a POST: its accounts replace the existing ones, unless they are the
    existing ones sent back, with or without changes.
    """

    payout: Payout
    recipient: Recipient
    replaces: bool = False

    @property
    def shown_method(self) -> str | None:
        primary = find_primary_account(self.recipient)
        return determine_account_method(primary) if primary else None

    @property
    def target(self) -> str | None:
        """The primary method after the change."""
        return self.payout.method or self.shown_method

    def account(self, method: str) -> Mapping[str, JSON] | None:
        return select_shown_accounts(self.recipient).get(ACCOUNT_TYPES.get(method, ""))

    def is_new(self, method: str) -> bool:
        """Tells if the account must be created: there is none, or its country changes.

        An invalid country counts as a change: without it the account cannot be validated as an
        update.
        """
        held = self.account(method)
        if held is None or (self.replaces and not self._is_sent_back(method, held)):
            return True
        if method != legacy.BANK:
            return False
        country = (self.payout.sent(method) or {}).get("country")
        is_refused = f"{self.payout.account_place(method)}country" in self.payout.told
        return is_refused or bool(country and held.get("country") != country)

    def _is_sent_back(self, method: str, held: Mapping[str, JSON]) -> bool:
        """Tells if it is the shown account, by the mask of its number or by its wallet address."""
        if method == legacy.WALLET and self.payout.wallet is not None:
            address = self.payout.wallet.get("address")
            return self.payout.is_sent_back and address == held.get("emailAddress")
        return self.payout.is_sent_back

    @property
    def touched(self) -> list[str]:
        """The methods of existing accounts that were sent, or that become the primary one."""
        wanted = [*self.payout.methods]
        if self.target and (self.payout.method or self.payout.currency):
            wanted.append(self.target)
        return [
            method
            for method in dict.fromkeys(wanted)
            if self.account(method) and not self.is_new(method)
        ]

    @property
    def created(self) -> list[str]:
        return [method for method in self.payout.methods if self.is_new(method)]

    # Validation

    def problems(self) -> Iterator[Problem]:
        yield from self._method_problems()
        for method in self.created:
            yield from validate_account(self.payout, method, self.recipient)
        if legacy.BANK in self.touched:
            yield from self._bank_problems()

    def _method_problems(self) -> Iterator[Problem]:
        method = self.payout.method
        if self.replaces and (method in ACCOUNT_TYPES or method != self.shown_method or not method):
            yield from validate_primary_method(self.payout)
            return
        if method is None or method == self.shown_method:
            return
        if method not in ACCOUNT_TYPES:
            yield build_unknown_method_problem(self.payout)
        elif self.payout.sent(method) is None and self.account(method) is None:
            yield empty(f"{self.payout.place}accounts.{method}")

    def _bank_problems(self) -> Iterator[Problem]:
        """Validates the account as it will be, but reports only fields that the client changes.

        The client cannot correct a stored value that it did not send.
        """
        place = self.payout.account_place(legacy.BANK)
        differing, shown = self.differing, self.shown_bank
        whole = {**shown, **differing}
        if differing.keys() & {"routing", "branchNum"}:
            # Answers show some branches under both names; the changed one counts.
            whole |= {name: None for name in ("routing", "branchNum") if name not in differing}
        held, kind = shown["governmentId"], self.recipient.get("type")
        changed = {place + name for name in differing}
        yield from validate_masks(differing, place)
        for problem in (
            *banking.validate_bank_account(whole, place),
            *banking.validate_government_id(whole, kind, place, held),
        ):
            if problem.field in changed:
                yield problem

    # Calls

    @property
    def shown_bank(self) -> dict[str, JSON]:
        return build_bank_answer(self.account(legacy.BANK) or {}, self.recipient)

    @property
    def differing(self) -> dict[str, JSON]:
        """The fields of the bank account that differ from the answer."""
        sent = dict(self.payout.bank or {})
        if self.payout.currency and self.target == legacy.BANK:
            sent.setdefault("currency", self.payout.currency)
        shown = self.shown_bank
        # Some clients send the province back under this name.
        shown["bankRegion"] = shown["bankProvince"]
        return {name: value for name, value in sent.items() if value != shown.get(name)}

    def fields(self, method: str) -> dict[str, JSON]:
        """Builds the changed fields of an existing account, with current names."""
        held = self.account(method) or {}
        sent = self._bank_fields(held) if method == legacy.BANK else self._wallet_fields(held)
        changed = {name: value for name, value in sent.items() if value != held.get(name)}
        if method == self.target and (changed or find_primary_account(self.recipient) is not held):
            changed["primary"] = True
        return changed

    def _wallet_fields(self, held: Mapping[str, JSON]) -> dict[str, JSON]:
        sent = WALLET.to_current(self.payout.wallet or {})
        if self.payout.currency and held.get("currency") and self.target == legacy.WALLET:
            sent["currency"] = self.payout.currency
        return sent

    def _bank_fields(self, held: Mapping[str, JSON]) -> dict[str, JSON]:
        differing = self.differing
        return translate_bank_account(
            {"country": held.get("country"), **differing}, held.get("branchId")
        )

    @property
    def new_accounts(self) -> Plan:
        first = None if self.recipient.get("accounts") else next(iter(self.created), None)
        return plan_accounts(self.payout, self.recipient, self.created, self.target or first)

    @property
    def government_ids(self) -> list[Sent]:
        if self.payout.bank is None:
            return []
        if self.is_new(legacy.BANK):
            return extract_government_ids(self.payout)
        value = self.differing.get("governmentId")
        bank = {"country": self.shown_bank["country"], "governmentId": value}
        return extract_government_ids(replace(self.payout, bank=bank))


def detect_payout_changes(
    payout: Payout, recipient: Recipient, *, replaces: bool = False
) -> Changes:
    """Determines the changes; if a currency was sent in two places, the changed one counts.

    If neither was changed, only the primary method is, and the bank account keeps its currency.
    """
    changes = Changes(payout, recipient, replaces)
    held = changes.account(legacy.BANK)
    if not (payout.bank and held and payout.currency and changes.target == legacy.BANK):
        return changes
    if replaces and changes.is_new(legacy.BANK):
        return changes
    if payout.bank.get("currency") != held.get("currency"):
        return changes
    if payout.currency == determine_shown_currency(recipient):
        return changes
    bank = {name: value for name, value in payout.bank.items() if name != "currency"}
    return replace(changes, payout=replace(payout, bank=bank))


def apply_payout_changes(changes: Changes, manners: LegacyOptions) -> Sub:
    """Updates existing accounts and adds new ones. Returns the recipient with its accounts."""
    recipient = changes.recipient
    for method in changes.touched:
        if fields := changes.fields(method):
            held = changes.account(method) or {}
            answered = yield from _change(changes, method, fields, manners)
            changed = {"primary": bool(held.get("primary")), **held, **fields, **answered}
            recipient = replace_accounts(recipient, [changed], [held])
    return (yield from add_planned_accounts(recipient, changes.new_accounts, manners))


def _change(
    changes: Changes, method: str, fields: Mapping[str, JSON], manners: LegacyOptions
) -> Sub:
    """Updates an account with PATCH /recipients/:id/accounts/:account and returns the response.

    If the id of the account has changed meanwhile, reads the recipient and tries again.
    """
    id_, held = changes.recipient["id"], changes.account(method) or {}
    country = held.get("country")
    call = Call(
        "PATCH",
        build_account_path(id_, held),
        fields,
        sent_as=map_account_fields(changes.payout, method, country),
        settle=settling.settle_changed_account(id_, held, fields),
    )
    try:
        return (yield from send_account(call, country, manners))
    except Refused as refused:
        if refused.status != 404:
            raise
        # Each change of an account gives it a new id, so another client may just have changed it.
        fresh = (yield Call("GET", f"/recipients/{id_}"))["recipient"]
        found = select_shown_accounts(fresh).get(ACCOUNT_TYPES[method])
        if found is None:
            raise
        path, settle = (
            build_account_path(id_, found),
            settling.settle_changed_account(id_, found, fields),
        )
        return (yield from send_account(replace(call, path=path, settle=settle), country, manners))
