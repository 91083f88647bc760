"""Parsing of payout methods in request bodies (sections 2 and 4.2).

Each method is one account of the service. A request is parsed completely before any of it is
applied.
"""

from dataclasses import dataclass, field
from typing import Literal

from gateway.simulator import accounts, recipients, values
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.countries import IBAN_LENGTHS, is_country_code
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import government_ids, lenient
from gateway.simulator.legacy.banks import (
    MASKED_FIELDS,
    AccountBody,
    fill_account_number_from_iban,
    has_number_sent_back_masked,
    translate_bank_account,
    translate_wallet,
)
from gateway.simulator.legacy.lenient import translate_problems
from gateway.simulator.legacy.views import (
    find_visible_account,
    translate_account_to_legacy_word,
)
from gateway.simulator.state import Account, Recipient, Tenant, build_default_hold
from gateway.simulator.values import is_blank

# Creating a recipient allows a body without methods, a POST does not, and a PATCH contains changes.
Mode = Literal["create", "post", "patch"]


@dataclass
class PayoutPlan:
    """Validated changes of accounts; `new_accounts` has pairs of new and replaced account."""

    primary_type: str | None = None
    new_accounts: list[tuple[Account, Account | None]] = field(default_factory=list)
    changed_accounts: list[tuple[Account, JsonObject]] = field(default_factory=list)
    government_ids: list[JsonObject] | None = None
    holds: dict[str, JsonObject] = field(default_factory=dict)

    def apply_to_recipient(self, tenant: Tenant, recipient: Recipient) -> None:
        recipient.autoswitch = self.holds.get("autoswitch", recipient.autoswitch)
        recipient.holdup = self.holds.get("holdup", recipient.holdup)
        if self.government_ids is not None:
            recipient.fields["governmentIds"] = self.government_ids
        for account, fields in self.changed_accounts:
            make_primary = account.type == self.primary_type
            accounts.set_account_fields_and_id(
                tenant, recipient, account, fields, make_primary=make_primary
            )
        # Before the old ones are removed: a recipient must not be without an account in between.
        for account, _ in self.new_accounts:
            accounts.attach_account(recipient, account)
            tenant.creation_counts["account"] += 1
        for _, replaced_account in self.new_accounts:
            if replaced_account is not None:
                accounts.remove_account(recipient, replaced_account)
        if self.changed_accounts or self.new_accounts or self.government_ids is not None:
            recipients.refresh_status(recipient)
            recipient.updated_at = tenant.now()


@dataclass
class PayoutParser:
    """Parses one request body into a plan.

    `recipient_fields` already include the other changes of the same request; `ssn` is the new SSN
    in that request, if any.
    """

    tenant: Tenant
    problems: Problems
    body: JsonObject
    recipient_fields: JsonObject
    recipient: Recipient | None
    mode: Mode
    ssn: object = None
    plan: PayoutPlan = field(default_factory=PayoutPlan)
    currency: str | None = None
    is_currency_refused: bool = False

    def parse(self) -> PayoutPlan:
        self._parse_autoswitch_and_holdup()
        # A separate collection, to know whether the objects themselves are well-formed.
        shape_problems = Problems([], self.problems.prefix)
        primary = lenient.parse_object(shape_problems, self.body, "primary")
        account_bodies = lenient.parse_object(shape_problems, self.body, "accounts")
        bodies_by_word = {
            word: lenient.parse_object(
                shape_problems.create_nested_view("accounts."), account_bodies, word
            )
            for word in self._method_words
        }
        # If the objects are malformed, problems of their fields mean nothing.
        if shape_problems.collected:
            self.problems.collected.extend(shape_problems.collected)
            return self.plan
        self.currency = self._parse_currency(primary.get("currency"))
        method = primary.get("method")
        given_words = [
            word
            for word in self._method_words
            if _has_account_body(word, account_bodies.get(word), method)
        ]
        # Before the accounts, because each of them depends on whether it is the primary one.
        primary_word = self._parse_primary_method(method, given_words)
        for word in given_words:
            self._plan_account(word, bodies_by_word[word], primary_word)
        if primary_word is not None and primary_word not in given_words:
            self._plan_existing_method_as_primary(primary_word)
        return self.plan

    @property
    def _method_words(self) -> tuple[str, str]:
        return "bank", self.tenant.vocabulary.legacy.wallet

    @property
    def account_problems(self) -> Problems:
        return self.problems.create_nested_view("accounts.")

    def _parse_autoswitch_and_holdup(self) -> None:
        for name in ("autoswitch", "holdup"):
            previous_hold = getattr(self.recipient, name, None) or build_default_hold()
            if hold_body := lenient.parse_object(self.problems, self.body, name):
                nested_problems = self.problems.create_nested_view(f"{name}.")
                self.plan.holds[name] = _parse_hold(nested_problems, hold_body, previous_hold)

    def _parse_currency(self, value: object) -> str | None:
        code = lenient.normalize_currency(value)
        if code is None or values.find_currency_problem(code) is None:
            return None if code is None else str(code)
        self.problems.add_invalid_field("primary.currency", "Must be an ISO 4217 code")
        self.is_currency_refused = True
        return None

    def _parse_primary_method(self, method: object, given_words: list[str]) -> str | None:
        if is_blank(method) and self.mode == "patch":
            if given_words or self.currency is None:
                return None
            # A currency alone changes the primary method.
            current_word = self._find_current_method()
            return current_word if current_word in self._method_words else None
        if is_blank(method):
            if len(given_words) == 1:  # A single method is the primary one.
                self.plan.primary_type = self._translate_legacy_word_to_account_type(given_words[0])
                return given_words[0]
            if given_words or self.mode == "post":
                self.problems.add_empty_field("primary.method")
            return None
        if isinstance(method, str) and method in self._method_words:
            self.plan.primary_type = self._translate_legacy_word_to_account_type(method)
            return method
        if method != self._find_current_method():  # The shown method may be sent back unchanged.
            self.problems.add_invalid_field(
                "primary.method", f"Must be one of: {', '.join(self._method_words)}"
            )
        return None

    @property
    def _primary_account(self) -> Account | None:
        return self.recipient.primary_account if self.recipient else None

    def _find_current_method(self) -> str | None:
        return translate_account_to_legacy_word(self.tenant, self._primary_account)

    def _is_currency_changed(self) -> bool:
        """Whether `primary.currency` differs from the shown one, which a client may send back."""
        account = self._primary_account
        return account is None or self.currency != account.fields["currency"]

    def _translate_legacy_word_to_account_type(self, word: str) -> str:
        return BANK_TRANSFER if word == "bank" else self.tenant.vocabulary.wallet

    def _find_current_account(self, word: str) -> Account | None:
        if self.recipient is None:
            return None
        account_type = self._translate_legacy_word_to_account_type(word)
        return find_visible_account(self.recipient, account_type)

    def _plan_existing_method_as_primary(self, word: str) -> None:
        """Makes an existing method the primary one, which only a PATCH can do."""
        current_account = self._find_current_account(word)
        # A POST adds methods, so it must have the account that it names.
        if current_account is None or self.mode != "patch":
            self.account_problems.add_empty_field(word)
        else:
            account_fields = {} if self.currency is None else {"currency": self.currency}
            self._plan_change(word, current_account, AccountBody(account_fields))

    def _plan_account(self, word: str, account_body: JsonObject, primary_word: str | None) -> None:
        # Typed clients send null for each field that they do not set.
        sent_fields = {name: value for name, value in account_body.items() if value is not None}
        current_account = self._find_current_account(word)
        translated_body = (
            translate_bank_account(sent_fields, current_account.fields if current_account else {})
            if word == "bank"
            else translate_wallet(sent_fields)
        )
        is_change = current_account is not None and self._is_change_not_replacement(
            word, sent_fields, current_account, translated_body
        )
        if self.currency is not None and (primary_word == word or not is_change):
            is_echo = is_change or self.mode == "patch"
            if (
                word == primary_word == "bank"
                and current_account
                and is_echo
                and self._is_currency_changed()
            ):
                _remove_unchanged_currency(current_account, translated_body)
            translated_body.fields.setdefault("currency", self.currency)
        # Legacy clients send an IBAN alone; this service then wants the number in it as well.
        if self.tenant.options.account_number_with_iban == "required":
            fill_account_number_from_iban(translated_body)
        government_id = sent_fields.get("governmentId")
        if is_change and current_account is not None:
            self._plan_change(word, current_account, translated_body, government_id)
        else:
            self._plan_new_account(word, current_account, translated_body, government_id)

    def _is_change_not_replacement(
        self,
        word: str,
        sent_fields: JsonObject,
        current_account: Account,
        translated_body: AccountBody,
    ) -> bool:
        """Whether the request changes the current account rather than replacing it.

        A PATCH changes it unless the country differs. A POST does if it sends the account back,
        which the masked number shows: the client could not know the mask otherwise.
        """
        if self.mode == "patch":
            return _is_same_country(current_account, translated_body)
        accounts_body = lenient.parse_object(Problems(), self.body, "accounts")
        bank_body = lenient.parse_object(Problems(), accounts_body, "bank")
        bank = self._find_current_account("bank")
        if bank is None or not has_number_sent_back_masked(bank_body, bank.fields):
            return False
        if word == "bank":
            return _is_same_country(current_account, translated_body)
        return bool(sent_fields.get("address") == current_account.fields["emailAddress"])

    def _plan_change(
        self,
        word: str,
        current_account: Account,
        translated_body: AccountBody,
        government_id: object = None,
    ) -> None:
        nested_problems = Problems()
        country = str(current_account.fields.get("country"))
        self._plan_government_id(word, government_id, country)
        fields = accounts.merge_and_check_account_change(
            self.tenant,
            nested_problems,
            self._merge_planned_government_ids(),
            current_account,
            translated_body.fields,
        )
        self._add_account_problems(word, translated_body, nested_problems)
        # An unmasked number is always a change: clients cannot know that it equals the stored one.
        if (
            fields != current_account.fields
            or not translated_body.fields.keys().isdisjoint(MASKED_FIELDS)
            or (self.plan.primary_type == current_account.type and not current_account.is_primary)
        ):
            self.plan.changed_accounts.append((current_account, fields))

    def _plan_new_account(
        self,
        word: str,
        current_account: Account | None,
        translated_body: AccountBody,
        government_id: object,
    ) -> None:
        nested_problems = Problems()
        body = {"type": self._translate_legacy_word_to_account_type(word), **translated_body.fields}
        if word == "bank":
            name = self.recipient_fields.get("name")
            # A wrong name of the recipient is reported for its own field: a placeholder will do.
            body.setdefault("accountHolderName", name if isinstance(name, str) and name else "-")
            self._plan_government_id(word, government_id, body.get("country"))
        is_primary = current_account is not None and current_account.is_primary
        primary_type = self.plan.primary_type
        body["primary"] = is_primary if primary_type is None else primary_type == body["type"]
        new_account = accounts.build_draft_account(
            self.tenant, nested_problems, self._merge_planned_government_ids(), body
        )
        self._add_account_problems(word, translated_body, nested_problems)
        self.plan.new_accounts.append((new_account, current_account))

    def _merge_planned_government_ids(self) -> JsonObject:
        ids = self.plan.government_ids
        return self.recipient_fields | ({} if ids is None else {"governmentIds": ids})

    def _plan_government_id(self, word: str, value: object, country: object) -> None:
        if word == "bank" and is_country_code(country):
            country = str(country)
            # The ids already include the request's `ssn`, if any: this id is added to them.
            is_combined = self.recipient is None or self.ssn is not None
            if self.recipient and value == government_ids.mask_recipient_government_id(
                self.recipient.fields, country
            ):
                return  # Sent back as shown.
            update_ids = (
                government_ids.list_government_ids_after_adding
                if is_combined
                else government_ids.list_government_ids_after_replacing
            )
            bank_problems = self.account_problems.create_nested_view("bank.")
            if self._is_conflicting_ssn(value, country):
                bank_problems.add_invalid_field("governmentId", "Is not the ssn sent with it")
                return
            ids = update_ids(bank_problems, "governmentId", value, country, self.recipient_fields)
            self.plan.government_ids = ids

    def _is_conflicting_ssn(self, value: object, country: str) -> bool:
        """Whether the id contradicts the request's `ssn`: a recipient has one US id."""
        # One that equals the shown id was sent back, and does not get here.
        is_us_with_ssn = country == government_ids.SSN_COUNTRY and self.ssn is not None
        return value is not None and is_us_with_ssn and value != self.ssn

    def _add_account_problems(
        self, word: str, translated_body: AccountBody, nested_problems: Problems
    ) -> None:
        path = f"accounts.{word}"
        names = {
            name: f"{path}.{client_name}"
            for name, client_name in translated_body.client_names.items()
        }
        names["governmentIds"] = f"{path}.governmentId"
        if word == "bank" and _lacks_iban_and_account_number(translated_body.fields):
            # Section 4.2: in an IBAN country the client must send the IBAN, not the number.
            names["accountNum"] = f"{path}.iban"
        if "currency" not in translated_body.client_names:
            names["currency"] = "primary.currency"
            if self.is_currency_refused:
                nested_problems.collected[:] = [
                    problem for problem in nested_problems.collected if problem.field != "currency"
                ]
        translate_problems(self.problems, nested_problems, names, f"{path}.")


def _lacks_iban_and_account_number(body: JsonObject) -> bool:
    """Whether IBAN and account number are both missing in a country with IBANs."""
    is_missing = is_blank(body.get("iban")) and is_blank(body.get("accountNum"))
    return is_missing and body.get("country") in IBAN_LENGTHS


def _remove_unchanged_currency(current_account: Account, translated_body: AccountBody) -> None:
    """Removes an unchanged currency from an account, so that `primary.currency` applies."""
    if translated_body.fields.get("currency") == current_account.fields.get("currency"):
        translated_body.fields.pop("currency", None)
        translated_body.client_names.pop("currency", None)


def _is_same_country(current_account: Account, translated_body: AccountBody) -> bool:
    current_country = current_account.fields.get("country")
    return bool(translated_body.fields.get("country", current_country) == current_country)


def _has_account_body(word: str, value: object, method: object) -> bool:
    """Whether the body has this method."""
    # Typed clients send an object with blank fields for a method that they do not set.
    has_only_blanks = isinstance(value, dict) and all(map(is_blank, value.values()))
    return value is not None and not (has_only_blanks and method != word)


def _parse_hold(problems: Problems, body: JsonObject, previous_hold: JsonObject) -> JsonObject:
    hold = dict(previous_hold)
    if body.get("limit") is not None:
        hold["limit"] = lenient.parse_integer(body["limit"])
        if hold["limit"] is None:
            problems.add_invalid_field("limit", "Must be a whole number")
    if body.get("active") is not None:
        hold["active"] = lenient.parse_boolean(body["active"])
        if hold["active"] is None:
            problems.add_invalid_field("active", "Must be true or false")
    return hold
