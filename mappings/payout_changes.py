"""Changes of the payout of an existing recipient, and the calls that they need.

Clients send whole objects back. Values equal to those in answers, in particular masks, are not
sent; the remaining ones update the account that was shown, or create a new one.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from msgspec import structs

from mappings import banking, legacy, payouts, recipient_outcomes
from mappings.banking import ClientGovernmentId
from mappings.effects import JSON, Call, CompareAndSet, LegacyOptions, SubFlow
from mappings.errors import RECIPIENT_NOT_SHOWN_YET
from mappings.failures import (
    Problem,
    Refused,
    build_empty_field_problem,
    build_invalid_field_problem,
)
from mappings.objects import (
    ACCOUNT_TYPE_BY_METHOD,
    METHOD_BY_ACCOUNT_TYPE,
    WALLET,
    Facts,
    build_legacy_bank,
    build_legacy_payout_holds,
    determine_account_type,
    determine_shown_payout_currency,
    find_primary_account,
    map_shown_accounts_by_type,
)
from mappings.payouts import Payout, Recipient


class PayoutChanges:
    """The changes of a recipient's accounts that a client's payout requests.

    ``is_replacement`` is for a POST: its accounts replace the existing ones, unless they are the
    existing ones sent back, with or without changes. If ``is_shown_late``, the service may show the
    accounts as they were before a change, so that values equal to the shown ones are sent, too.

    If a currency was sent in two places, the changed one counts. If neither was changed, only the
    primary method is, and the bank account keeps its currency.
    """

    def __init__(
        self,
        payout: Payout,
        recipient: Recipient,
        facts: Facts,
        *,
        is_replacement: bool = False,
        is_shown_late: bool = False,
    ) -> None:
        shown_currency = determine_shown_payout_currency(recipient)
        if payout.nested_currency and payout.currency == shown_currency:
            payout = structs.replace(payout, currency=payout.nested_currency)
        if is_replacement and not payout.method and len(payout.accounts) == 1:
            payout = structs.replace(payout, method=next(iter(payout.accounts)))
        self.payout, self.recipient = payout, recipient
        self.is_replacement, self.is_shown_late = is_replacement, is_shown_late
        # Stored without effect. A client that sends a whole object back did not request a hold.
        previous = build_legacy_payout_holds(facts)
        self.holds: dict[str, JSON] = {
            name: changed
            for name, hold in payout.holds.items()
            if (changed := {**previous[name], **hold}) != previous[name]
        }
        self._accounts_by_type = map_shown_accounts_by_type(recipient)
        primary = find_primary_account(recipient)
        type_ = determine_account_type(primary) if primary else None
        self.existing_primary_method = METHOD_BY_ACCOUNT_TYPE.get(type_ or "", type_)
        self.new_primary_method = payout.method or self.existing_primary_method
        """The primary method after the change."""
        self.methods_to_create = [
            method for method in payout.accounts if self.is_new_account_needed(method)
        ]
        self.methods_to_update = self._select_methods_to_update()
        bank, account = payout.accounts.get(legacy.BANK), self.find_account(legacy.BANK)
        if (
            bank
            and account
            and payout.currency not in (None, "", shown_currency)
            and self.new_primary_method == legacy.BANK
            and not (is_replacement and self.is_new_account_needed(legacy.BANK))
            and bank.get("currency") == account.get("currency")
        ):
            bank = {name: value for name, value in bank.items() if name != "currency"}
            accounts = {**payout.accounts, legacy.BANK: bank}
            self.payout = structs.replace(payout, accounts=accounts)

    @property
    def notices(self) -> tuple[str, ...]:
        """Messages for the operator: no payout can be held."""
        return tuple(
            f"{name} was requested; payouts to this recipient are not held"
            for name, hold in self.holds.items()
            if hold["active"]
        )

    def find_account(self, method: str) -> Mapping[str, JSON] | None:
        return self._accounts_by_type.get(ACCOUNT_TYPE_BY_METHOD.get(method, ""))

    def is_new_account_needed(self, method: str) -> bool:
        """Whether the account must be created: there is none, or its country changes.

        An invalid country counts as a change: without it the account cannot be validated as an
        update.
        """
        account = self.find_account(method)
        if account is None or (
            self.is_replacement and not self._is_existing_account_meant(method, account)
        ):
            return True
        if method != legacy.BANK:
            return False
        country = self.payout.accounts.get(method, {}).get("country")
        field = f"{self.payout.build_account_field_prefix(method)}country"
        return field in self.payout.refused_fields or bool(
            country and account.get("country") != country
        )

    def _is_existing_account_meant(self, method: str, account: Mapping[str, JSON]) -> bool:
        """Whether the client means the shown account, by its mask or that of the bank account."""
        if method in self.payout.methods_with_mask:
            return True
        wallet = self.payout.accounts.get(legacy.WALLET)
        return (
            method == legacy.WALLET
            and legacy.BANK in self.payout.methods_with_mask
            and (wallet is None or wallet.get("address") == account.get("emailAddress"))
        )

    def _select_methods_to_update(self) -> list[str]:
        """Selects the methods of existing accounts that were sent, or become the primary one."""
        methods = [*self.payout.accounts]
        if self.new_primary_method and (self.payout.method or self.payout.currency):
            methods.append(self.new_primary_method)
        return [
            method
            for method in dict.fromkeys(methods)
            if self.find_account(method) and not self.is_new_account_needed(method)
        ]

    # Validation

    def validate(self, options: LegacyOptions) -> Iterator[Problem]:
        yield from self._validate_method()
        for method in self.methods_to_create:
            yield from payouts.validate_account(self.payout, method, self.recipient)
        if legacy.BANK in self.methods_to_update:
            yield from self._validate_bank()
        if legacy.WALLET in self.methods_to_update:
            wallet = self.payout.accounts.get(legacy.WALLET, {})
            prefix = self.payout.build_account_field_prefix(legacy.WALLET)
            yield from payouts.validate_masks(wallet, prefix, {"address"})
        for name, hold in self.holds.items():
            if hold["active"] and options.holdup == "refuse":
                field = f"{self.payout.prefix}{name}.active"
                yield build_invalid_field_problem(field, "is not supported")

    def _validate_method(self) -> Iterator[Problem]:
        payout, method = self.payout, self.payout.method
        # Inside a recipient, a payout may have holds alone.
        if payout.prefix and not (payout.accounts or method):
            return
        is_settable = method in ACCOUNT_TYPE_BY_METHOD
        field = f"{payout.prefix}primary.method"
        if method is None and self.is_replacement:
            yield build_empty_field_problem(field)
        # The shown method may be sent back, even one that cannot be set up.
        elif method is None or (
            method == self.existing_primary_method and not (self.is_replacement and is_settable)
        ):
            return
        elif not is_settable:
            yield build_invalid_field_problem(field, "must be a payout method that can be set up")
        elif method not in payout.accounts and (
            self.is_replacement or self.find_account(method) is None
        ):
            yield build_empty_field_problem(f"{payout.prefix}accounts.{method}")

    def _validate_bank(self) -> Iterator[Problem]:
        """Validates the account as it will be, but reports only fields that the client changes.

        The client cannot correct a stored value that it did not send.
        """
        prefix = self.payout.build_account_field_prefix(legacy.BANK)
        bank_changes, bank_answer = self.bank_changes, self.bank_answer
        merged_bank = {**bank_answer, **bank_changes}
        branch_names = {"routing", "branchNum"}
        if bank_changes.keys() & branch_names:
            # Answers show some branches under both names; the changed one counts.
            merged_bank |= dict.fromkeys(branch_names - bank_changes.keys())
        masked_id, kind = bank_answer["governmentId"], self.recipient.get("type")
        client_fields = {prefix + name for name in bank_changes}
        yield from payouts.validate_masks(bank_changes, prefix)
        for problem in (
            *banking.validate_bank_account(merged_bank, prefix),
            *banking.validate_government_id(merged_bank, kind, prefix, masked_id),
        ):
            if problem.field in client_fields:
                yield problem

    # Calls

    @property
    def bank_answer(self) -> dict[str, JSON]:
        return build_legacy_bank(self.find_account(legacy.BANK) or {}, self.recipient)

    @property
    def bank_changes(self) -> dict[str, JSON]:
        """The fields of the bank account that differ from the answer."""
        answer = self.bank_answer
        # Some clients send the province back under this name.
        answer["bankRegion"] = answer["bankProvince"]
        return {name: value for name, value in self._bank.items() if value != answer.get(name)}

    @property
    def _bank(self) -> dict[str, JSON]:
        bank = dict(self.payout.accounts.get(legacy.BANK, {}))
        if self.payout.currency and self.new_primary_method == legacy.BANK:
            bank.setdefault("currency", self.payout.currency)
        return bank

    def build_account_changes(self, method: str) -> dict[str, JSON]:
        """Builds the changed fields of an existing account, with current names."""
        account = self.find_account(method) or {}
        if method == legacy.BANK:
            bank_changes = self._bank if self.is_shown_late else self.bank_changes
            fields = payouts.translate_bank_account(
                {"country": account.get("country"), **bank_changes}, account.get("branchId")
            )
        else:
            fields = WALLET.translate_to_current(self.payout.accounts.get(legacy.WALLET, {}))
            is_primary = self.new_primary_method == legacy.WALLET
            if self.payout.currency and account.get("currency") and is_primary:
                fields["currency"] = self.payout.currency
        changes = {
            name: value
            for name, value in fields.items()
            if self.is_shown_late or value != account.get(name)
        }
        # A patch of another kind of account must not change which one is paid.
        is_primary = find_primary_account(self.recipient) is account
        is_changed = changes or self.is_shown_late or not is_primary
        if method == self.new_primary_method and is_changed:
            changes["primary"] = True
        return changes

    @property
    def government_ids(self) -> list[ClientGovernmentId]:
        """The government id that was sent with the bank account, if any."""
        bank = self.payout.accounts.get(legacy.BANK)
        if bank is not None and legacy.BANK not in self.methods_to_create:
            bank = {**self.bank_changes, "country": self.bank_answer["country"]}
        value, country = (bank or {}).get("governmentId"), (bank or {}).get("country")
        if not value or not country:
            return []
        field = f"{self.payout.build_account_field_prefix(legacy.BANK)}governmentId"
        return [ClientGovernmentId(country, value, field)]


def apply_payout_changes(
    changes: PayoutChanges, options: LegacyOptions, *, is_undone_by_caller: bool = False
) -> SubFlow:
    """Updates existing accounts, adds new ones, deletes replaced ones and stores the holds.

    Returns the recipient with its accounts. If one is refused, the added ones are deleted, unless the
    caller deletes the whole recipient (``is_undone_by_caller``).
    """
    recipient = changes.recipient
    new_accounts: list[dict[str, JSON]] = []
    changed_accounts: list[tuple[Mapping[str, JSON], dict[str, JSON]]] = []
    try:
        # Before another account becomes the primary one, which may give the wallet another id.
        yield from _change_account(changes, legacy.WALLET, options, changed_accounts)
        yield from _add_accounts(changes, options, new_accounts)
        # Last: its numbers are masked, so that they cannot be set back if another call is refused.
        yield from _change_account(changes, legacy.BANK, options, changed_accounts)
    # Nothing is undone after Unknown: the account may exist, and reconciliation decides that first.
    except Refused as refusal:
        if not is_undone_by_caller:
            yield from payouts.undo_account_writes(
                recipient, new_accounts, changed_accounts, refusal
            )
        raise
    recipient = yield from payouts.delete_replaced_accounts(recipient, new_accounts)
    if changed_accounts:
        old_accounts = [before for before, _ in changed_accounts]
        recipient = payouts.replace_accounts_of_recipient(
            recipient, [after for _, after in changed_accounts], old_accounts
        )
    if changes.holds:
        yield CompareAndSet("recipient", recipient["id"], changes.holds)
    return recipient


def _add_accounts(
    changes: PayoutChanges, options: LegacyOptions, new_accounts: list[dict[str, JSON]]
) -> SubFlow:
    """Adds the new accounts and appends them to ``new_accounts``; then sets a wallet's currency."""
    recipient, payout = changes.recipient, changes.payout
    accounts, primary_method = recipient.get("accounts") or [], changes.new_primary_method
    if not accounts:
        primary_method = primary_method or next(iter(changes.methods_to_create), None)
    for method in changes.methods_to_create:
        # The flag is sent with each, because otherwise the service decides by the order of creation.
        account = {
            **payouts.build_account_body(payout, method, recipient),
            "primary": method == primary_method,
        }
        field_map = payouts.map_account_field_names_to_client(payout, method)
        # This includes the ids of accounts just added: a new account is recognized by an id that
        # was not there before.
        reconcile = recipient_outcomes.build_account_creation_outcome_rule(
            recipient["id"], account, payouts.collect_account_ids([*accounts, *new_accounts])
        )
        path = f"/recipients/{recipient['id']}/accounts"
        call = Call("POST", path, account, field_map=field_map, reconcile=reconcile)
        response = yield from payouts.send_account_with_number_retry(
            call, account.get("country"), options
        )
        new_accounts.append({**account, **response})
        currency, shown_currency = payout.currency, new_accounts[-1].get("currency")
        # The service may have chosen another currency for a wallet.
        if method == legacy.WALLET and currency and shown_currency not in (None, currency):
            fields = {"currency": currency}
            response = yield recipient_outcomes.build_account_change_call(
                recipient["id"], new_accounts[-1], fields, [*accounts, *new_accounts], field_map
            )
            new_accounts[-1] |= {**fields, **payouts.extract_account(response)}


def _change_account(
    changes: PayoutChanges,
    method: str,
    options: LegacyOptions,
    changed_accounts: list[tuple[Mapping[str, JSON], dict[str, JSON]]],
) -> SubFlow:
    """Sends the changed fields of an existing account; appends it before and after the change.

    PATCH /recipients/:id/accounts/:account. If the id of the account has changed meanwhile, reads
    the recipient and tries again.
    """
    is_updated = method in changes.methods_to_update
    if not (is_updated and (fields := changes.build_account_changes(method))):
        return
    account = changes.find_account(method) or {}
    id_, country = changes.recipient["id"], account.get("country")
    field_map = payouts.map_account_field_names_to_client(changes.payout, method, country)
    accounts = changes.recipient.get("accounts") or ()
    build_call = partial(
        recipient_outcomes.build_account_change_call, id_, fields=fields, field_map=field_map
    )
    call = build_call(account, accounts_before=accounts)
    try:
        response = yield from payouts.send_account_with_number_retry(call, country, options)
    except Refused as refused:
        if refused.status != 404:
            raise
        # Each change gives an account a new id, so a missing id means that another client may have
        # changed it.
        recipient = (yield Call("GET", f"/recipients/{id_}"))["recipient"]
        current_account = map_shown_accounts_by_type(recipient).get(ACCOUNT_TYPE_BY_METHOD[method])
        # Another replica may show the recipient as it was before it had the account.
        if current_account is None or (
            current_account["recipientAccountId"] == account["recipientAccountId"]
        ):
            raise Refused(500, [RECIPIENT_NOT_SHOWN_YET], retry_after="5") from None
        call = build_call(current_account, accounts_before=recipient["accounts"])
        response = yield from payouts.send_account_with_number_retry(call, country, options)
    # The response has the new id, so later calls need it; its fields take precedence.
    is_primary = bool(account.get("primary"))
    changed_accounts.append((account, {"primary": is_primary, **account, **fields, **response}))
