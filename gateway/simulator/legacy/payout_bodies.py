"""Parsing of payout methods in request bodies (sections 2 and 4.2).

Each method is one account of the service. Legacy clients use a different field for the branch in
each country; the service has one.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.simulator import accounts, validation
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.countries import IBAN_COUNTRIES, is_country_code
from gateway.simulator.legacy import bodies
from gateway.simulator.legacy.bodies import SentId, replace_government_ids
from gateway.simulator.legacy.views import (
    find_primary_method,
    find_visible_account,
    list_branch_id_field_names,
    mask_recipient_government_id,
)
from gateway.simulator.state import Account, Recipient, Tenant
from gateway.simulator.validation import JsonObject, Problems, is_blank, mask_value

UNCHANGED_FIELDS = (
    "country", "currency", "accountNum", "iban", "swiftBic", "bankAddress", "bankCity",
    "bankPostalCode",
)  # fmt: skip
MASKED_FIELDS = ("accountNum", "iban")
SORT_CODE_RANGE = slice(8, 14)  # In a British IBAN.

AccountBody = tuple[JsonObject, dict[str, str]]
"""Translated account fields, and the client's names of those that have others.

The names include `currency` if the account itself has one (otherwise it comes from `primary`).
"""


def list_masks_sent_back(sent_fields: JsonObject, previous_fields: JsonObject) -> list[str]:
    """Lists the numbers that equal the mask which responses show."""
    masks = {name: mask_value(previous_fields.get(name)) for name in MASKED_FIELDS}
    return [name for name, mask in masks.items() if mask and sent_fields.get(name) == mask]


def translate_bank_account(sent_fields: JsonObject, previous_fields: JsonObject) -> AccountBody:
    """Translates a bank account.

    `sent_fields` has no nulls; `previous_fields` are those of the account that the client sees.
    """
    country = bodies.normalize_country(sent_fields.get("country", previous_fields.get("country")))
    has_province = "bankProvince" in sent_fields
    client_names = {
        "accountHolderName": "name",
        "bankRegion": "bankProvince" if has_province else "bankRegion",
    }
    if country == "CA":  # Elsewhere `institution` is the name of the bank in responses.
        client_names["bankId"] = "institution"
    if branch_names := list_branch_id_field_names(str(country)):
        sent_names = [name for name in branch_names if name in sent_fields]
        client_names["branchId"] = (sent_names or branch_names)[0]
    fields, client_names = _rename_fields(sent_fields, client_names, UNCHANGED_FIELDS)
    if "country" in fields:
        fields["country"] = country
    # They mean "unchanged"; any other mask is refused by the service's rules.
    for name in list_masks_sent_back(fields, previous_fields):
        del fields[name]
    compact_iban = str(fields.get("iban")).replace(" ", "").upper()
    if isinstance(fields.get("branchId"), str):
        fields["branchId"] = re.sub("[ -]", "", fields["branchId"])
    elif country == "GB" and compact_iban.startswith("GB"):
        fields.setdefault("branchId", compact_iban[SORT_CODE_RANGE])
    return fields, client_names


def _rename_fields(
    sent_fields: JsonObject, client_names: dict[str, str], unchanged_names: tuple[str, ...]
) -> AccountBody:
    names = {name: name for name in unchanged_names} | client_names
    fields = {name: sent_fields[sent] for name, sent in names.items() if sent in sent_fields}
    if "currency" in fields:
        fields["currency"] = bodies.normalize_currency(fields["currency"])
        client_names["currency"] = "currency"
    return fields, client_names


# Creating a recipient allows a body without methods, a POST does not, and a PATCH contains changes.
Mode = Literal["create", "post", "patch"]


@dataclass
class PayoutParser:
    """Applies one request body to `recipient`.

    That is a copy, for the caller to drop if the request has problems; its fields already include
    the other changes of the same request.
    """

    tenant: Tenant
    problems: Problems
    body: JsonObject
    recipient: Recipient
    mode: Mode
    primary_type: str | None = None
    currency: Any = None
    is_bank_sent_back: bool = False
    has_new_ids: bool = False
    has_account_changes: bool = False
    recipient_fields: JsonObject = field(default_factory=dict)
    """Those before the accounts are changed, which may change the currency."""

    def parse(self, sent_ids: Iterable[SentId] = ()) -> None:
        """Parses accounts and government ids.

        `sent_ids` are the government ids in the rest of the request.
        """
        for name in ("autoswitch", "holdup"):
            if hold_body := bodies.parse_object(self.problems, self.body, name):
                nested_problems = self.problems.create_nested_view(f"{name}.")
                hold = _parse_hold(nested_problems, hold_body, getattr(self.recipient, name))
                setattr(self.recipient, name, hold)
        # A separate collection, to know whether the objects themselves are well-formed.
        shape_problems = Problems([], self.problems.prefix)
        primary = bodies.parse_object(shape_problems, self.body, "primary")
        account_bodies = bodies.parse_object(shape_problems, self.body, "accounts")
        nested_problems = shape_problems.create_nested_view("accounts.")
        bodies_by_word = {
            word: bodies.parse_object(nested_problems, account_bodies, word)
            for word in self._types_by_word
        }
        bank_ids = self._parse_government_id(bodies_by_word["bank"])
        self.has_new_ids = replace_government_ids(self.recipient.fields, [*sent_ids, *bank_ids])
        # If the objects are malformed, problems of their fields mean nothing.
        if shape_problems.collected:
            self.problems.collected.extend(shape_problems.collected)
            return
        self.recipient_fields = dict(self.recipient.fields)
        self.currency = bodies.normalize_currency(primary.get("currency"))
        if self.currency is not None:
            self.problems.check("primary.currency", self.currency, validation.find_currency_problem)
        method = primary.get("method")
        # Typed clients send an object with blank fields for a method that they do not set.
        given_words = [
            word
            for word in self._types_by_word
            if account_bodies.get(word) is not None
            and (method == word or not all(map(is_blank, account_bodies[word].values())))
        ]
        # Before the accounts, because each of them depends on whether it is the primary one.
        primary_word = self._parse_primary_method(method, given_words)
        for word in given_words:
            self._parse_account(word, bodies_by_word[word], primary_word)
        if primary_word is not None and primary_word not in given_words:
            self._make_existing_method_primary(primary_word)

    @property
    def _types_by_word(self) -> dict[str, str]:
        words = self.tenant.vocabulary
        return {"bank": BANK_TRANSFER, words.legacy.wallet: words.wallet}

    def _parse_government_id(self, bank_body: JsonObject) -> list[SentId]:
        """Parses the id of a bank account, of the account's country; the shown one is no change."""
        current_account, value = self._find_account("bank"), bank_body.get("governmentId")
        fields = current_account.fields if current_account else {}
        self.is_bank_sent_back = bool(list_masks_sent_back(bank_body, fields))
        # A POST that replaces the account must name its country itself.
        is_replaced = self.mode == "post" and not self.is_bank_sent_back
        previous_country = None if is_replaced else fields.get("country")
        country = bodies.normalize_country(bank_body.get("country")) or previous_country
        if value is None or not is_country_code(country):
            return []
        if value == mask_recipient_government_id(self.recipient.fields, country):
            return []
        problems = self.problems.create_nested_view("accounts.bank.")
        return [SentId(problems, "governmentId", str(country), value)]

    def _parse_primary_method(self, method: object, given_words: list[str]) -> str | None:
        current_word = find_primary_method(self.tenant, self.recipient)
        if is_blank(method) and self.mode == "patch":
            # A currency alone changes the primary method.
            is_currency_alone = not given_words and self.currency is not None
            return (
                current_word if is_currency_alone and current_word in self._types_by_word else None
            )
        if is_blank(method) and len(given_words) == 1:  # A single method is the primary one.
            method = given_words[0]
        if is_blank(method):
            if given_words or self.mode == "post":
                self.problems.add_empty_field("primary.method")
            return None
        if isinstance(method, str) and method in self._types_by_word:
            self.primary_type = self._types_by_word[method]
            return method
        if method != current_word:  # The shown method may be sent back unchanged.
            choices = ", ".join(self._types_by_word)
            self.problems.add_invalid_field("primary.method", f"Must be one of: {choices}")
        return None

    def _find_account(self, word: str) -> Account | None:
        return find_visible_account(self.recipient, self._types_by_word[word])

    def _make_existing_method_primary(self, word: str) -> None:
        """Makes an existing method the primary one, which only a PATCH can do."""
        account = self._find_account(word)
        # A POST adds methods, so it must have the account that it names.
        if account is None or self.mode != "patch":
            self.problems.add_empty_field(f"accounts.{word}")
        else:
            fields = {} if self.currency is None else {"currency": self.currency}
            self._change_account(word, account, (fields, {}))

    def _parse_account(self, word: str, account_body: JsonObject, primary_word: str | None) -> None:
        # Typed clients send null for each field that they do not set.
        sent_fields = {name: value for name, value in account_body.items() if value is not None}
        account = self._find_account(word)
        body = (
            translate_bank_account(sent_fields, account.fields if account else {})
            if word == "bank"
            # The document has no currency for it, but one is accepted as for a bank account.
            else _rename_fields(sent_fields, {"emailAddress": "address"}, ("currency",))
        )
        is_change = account is not None and self._is_change_not_replacement(account, body[0])
        if self.currency is not None and (primary_word == word or not is_change):
            is_kept = is_change or self.mode == "patch"
            if word == primary_word == "bank" and account is not None and is_kept:
                self._remove_unchanged_currency(account, body)
            body[0].setdefault("currency", self.currency)
        if is_change and account is not None:
            self._change_account(word, account, body)
        else:
            self._add_account(word, account, body)

    def _is_change_not_replacement(self, account: Account, fields: JsonObject) -> bool:
        """Whether the request changes the current account rather than replacing it.

        A PATCH changes it unless the country differs. A POST does if it sends the account back,
        which the masked number shows: the client could not know the mask otherwise.
        """
        country = account.fields.get("country")
        is_same_country = bool(fields.get("country", country) == country)
        if self.mode == "patch":
            return is_same_country
        is_same_address = fields.get("emailAddress") == account.fields.get("emailAddress")
        return self.is_bank_sent_back and is_same_country and is_same_address

    def _remove_unchanged_currency(self, account: Account, body: AccountBody) -> None:
        """Removes an unchanged currency from an account, so that a new `primary.currency` applies."""
        primary_account = self.recipient.primary_account
        # The shown one may be sent back, too.
        is_new = primary_account is None or self.currency != primary_account.fields["currency"]
        if is_new and body[0].get("currency") == account.fields.get("currency"):
            for part in body:
                part.pop("currency", None)

    def _change_account(self, word: str, account: Account, body: AccountBody) -> None:
        nested_problems = Problems()
        fields = accounts.merge_and_check_account_fields(
            self.tenant, nested_problems, self.recipient_fields, account, body[0]
        )
        self._add_account_problems(word, body, nested_problems)
        make_primary = self.primary_type == account.type
        # An unmasked number is always a change: clients cannot know that it equals the stored one.
        if (
            fields != account.fields
            or not body[0].keys().isdisjoint(MASKED_FIELDS)
            or (make_primary and not account.is_primary)
        ):
            account.fields, self.has_account_changes = fields, True
            accounts.renew_account(self.tenant, self.recipient, account, make_primary=make_primary)

    def _add_account(self, word: str, replaced: Account | None, body: AccountBody) -> None:
        nested_problems = Problems()
        fields = {"type": self._types_by_word[word], **body[0]}
        if word == "bank":
            name = self.recipient_fields.get("name")
            # A wrong name of the recipient is reported for its own field: a placeholder will do.
            fields.setdefault("accountHolderName", name if isinstance(name, str) and name else "-")
        is_primary = replaced is not None and replaced.is_primary
        fields["primary"] = (
            is_primary if self.primary_type is None else self.primary_type == fields["type"]
        )
        new_account = accounts.build_draft_account(
            self.tenant, nested_problems, self.recipient_fields, fields
        )
        self._add_account_problems(word, body, nested_problems)
        self.has_account_changes = True
        accounts.attach_account(self.recipient, new_account)
        if replaced is not None:
            accounts.remove_account(self.recipient, replaced)

    def _add_account_problems(
        self, word: str, body: AccountBody, nested_problems: Problems
    ) -> None:
        (fields, client_names), path = body, f"accounts.{word}"
        names = {name: f"{path}.{client_name}" for name, client_name in client_names.items()}
        names["governmentIds"] = f"{path}.governmentId"
        has_number = not all(is_blank(fields.get(name)) for name in MASKED_FIELDS)
        if word == "bank" and not has_number and fields.get("country") in IBAN_COUNTRIES:
            # Section 4.2: in an IBAN country the client must send the IBAN, not the number.
            names["accountNum"] = f"{path}.iban"
        names.setdefault("currency", "primary.currency")
        bodies.translate_problems(self.problems, nested_problems, names, f"{path}.")


def _parse_hold(problems: Problems, body: JsonObject, previous_hold: JsonObject) -> JsonObject:
    hold = dict(previous_hold)
    for name, parse, message in (
        ("limit", bodies.parse_integer, "Must be a whole number"),
        ("active", bodies.parse_boolean, "Must be true or false"),
    ):
        if body.get(name) is not None:
            hold[name] = parse(body[name])
            if hold[name] is None:
                problems.add_invalid_field(name, message)
    return hold
