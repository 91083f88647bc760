"""Parsing of payout methods in request bodies (sections 2 and 4.2).

Each method is one account of the service. A request is parsed completely before any of it is
applied.
"""

from dataclasses import dataclass, field
from typing import Literal

from gateway.simulator import accounts, recipients, values
from gateway.simulator.account_rules import BANK
from gateway.simulator.countries import IBAN_LENGTH
from gateway.simulator.legacy import government_ids, loose
from gateway.simulator.legacy.banks import (
    MASKED,
    Written,
    add_account_number,
    bank,
    is_masked,
    wallet,
)
from gateway.simulator.legacy.payout_views import method_word, shown_account
from gateway.simulator.legacy.said import say
from gateway.simulator.refusals import Problems
from gateway.simulator.rules import is_country
from gateway.simulator.state import Account, Recipient, World, no_hold
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject

# Creating a recipient allows a body without methods, a POST does not, and a PATCH contains changes.
Mode = Literal["create", "post", "patch"]


@dataclass
class Plan:
    """Validated changes of accounts; `new_accounts` has pairs of new and replaced account."""

    primary: str | None = None
    made: list[tuple[Account, Account | None]] = field(default_factory=list)
    changed: list[tuple[Account, JsonObject]] = field(default_factory=list)
    government_ids: list[JsonObject] | None = None
    holds: dict[str, JsonObject] = field(default_factory=dict)

    def carry_out(self, world: World, recipient: Recipient) -> None:
        recipient.autoswitch = self.holds.get("autoswitch", recipient.autoswitch)
        recipient.holdup = self.holds.get("holdup", recipient.holdup)
        if self.government_ids is not None:
            recipient.fields["governmentIds"] = self.government_ids
        for account, fields in self.changed:
            primary = account.type == self.primary
            accounts.change(world, recipient, account, fields, primary=primary)
        for account, _ in self.made:
            accounts.attach(recipient, account)
            world.books.created["account"] += 1
        for _, before in self.made:
            if before is not None:
                accounts.remove(recipient, before)
        if self.changed or self.made or self.government_ids is not None:
            recipients.settle(recipient)
            recipient.updated_at = world.now()


@dataclass
class Reading:
    """Parses one request body into a plan.

    `recipient_fields` already include the other changes of the same request; `ssn` is the new SSN
    in that request, if any.
    """

    world: World
    problems: Problems
    sent: JsonObject
    fields: JsonObject
    recipient: Recipient | None
    mode: Mode
    ssn: object = None
    plan: Plan = field(default_factory=Plan)
    currency: str | None = None
    is_currency_told: bool = False

    def read(self) -> Plan:
        self._read_holds()
        # A separate collection, to know whether the objects themselves are well-formed.
        shapes = Problems([], self.problems.prefix)
        primary = loose.inside(shapes, self.sent, "primary")
        sent = loose.inside(shapes, self.sent, "accounts")
        written = {
            word: loose.inside(shapes.within("accounts."), sent, word) for word in self._methods
        }
        if shapes.found:  # If the objects are malformed, problems of their fields mean nothing.
            self.problems.found.extend(shapes.found)
            return self.plan
        self.currency = self._read_currency(primary.get("currency"))
        method = primary.get("method")
        given = [word for word in self._methods if _is_given(word, sent.get(word), method)]
        chosen = self._read_primary(method, given)
        for word in given:
            self._read_account(word, written[word], chosen)
        if chosen is not None and chosen not in given:
            self._choose(chosen)
        return self.plan

    @property
    def _methods(self) -> tuple[str, str]:
        return "bank", self.world.words.legacy.wallet

    @property
    def accounts(self) -> Problems:
        return self.problems.within("accounts.")

    def _read_holds(self) -> None:
        for name in ("autoswitch", "holdup"):
            before = getattr(self.recipient, name) if self.recipient else no_hold()
            sent = loose.inside(self.problems, self.sent, name)
            if sent:
                self.plan.holds[name] = _hold(self.problems.within(f"{name}."), sent, before)

    def _read_currency(self, sent: object) -> str | None:
        code = loose.currency(sent)
        if code is None or values.currency(code) is None:
            return None if code is None else str(code)
        self.problems.invalid("primary.currency", "Must be an ISO 4217 code")
        self.is_currency_told = True
        return None

    def _read_primary(self, method: object, given: list[str]) -> str | None:
        if blank(method) and self.mode == "patch":
            if given or self.currency is None:
                return None
            now = self._shown_method()  # A currency alone changes the primary method.
            return now if now in self._methods else None
        if blank(method):
            if len(given) == 1:  # A single method is the primary one.
                self.plan.primary = self._kind(given[0])
                return given[0]
            if given or self.mode == "post":
                self.problems.empty("primary.method")
            return None
        if isinstance(method, str) and method in self._methods:
            self.plan.primary = self._kind(method)
            return method
        if method != self._shown_method():  # The shown method may be sent back unchanged.
            self.problems.invalid("primary.method", f"Must be one of: {', '.join(self._methods)}")
        return None

    def _shown_method(self) -> str | None:
        return method_word(self.world, self.recipient.primary) if self.recipient else None

    def _is_another_currency(self) -> bool:
        """Whether `primary.currency` differs from the shown one, which a client may send back."""
        primary = self.recipient.primary if self.recipient else None
        shown = primary.fields["currency"] if primary else None
        return self.currency != shown

    def _kind(self, word: str) -> str:
        return BANK if word == "bank" else self.world.words.wallet

    def _before(self, word: str) -> Account | None:
        return shown_account(self.recipient, self._kind(word)) if self.recipient else None

    def _choose(self, word: str) -> None:
        """Make an existing method the primary one, which only a PATCH can do."""
        before = self._before(word)
        if before is None or self.mode != "patch":
            self.accounts.empty(word)
        else:
            sent = {} if self.currency is None else {"currency": self.currency}
            self._change(word, before, Written(sent))

    def _read_account(self, word: str, given: JsonObject, chosen: str | None) -> None:
        # Typed clients send null for each field that they do not set.
        sent = {name: value for name, value in given.items() if value is not None}
        before = self._before(word)
        written = bank(sent, before.fields if before else {}) if word == "bank" else wallet(sent)
        changes = before is not None and self._is_change(word, sent, before, written)
        if self.currency is not None and (chosen == word or not changes):
            is_echo = changes or self.mode == "patch"
            if word == chosen == "bank" and before and is_echo and self._is_another_currency():
                _leave_out_currency_shown(before, written)
            written.body.setdefault("currency", self.currency)
        if self.world.switches.account_number_with_iban == "required":
            add_account_number(written)
        if changes and before is not None:
            self._change(word, before, written, sent.get("governmentId"))
        else:
            self._make(word, before, written, sent.get("governmentId"))

    def _is_change(self, word: str, sent: JsonObject, before: Account, written: Written) -> bool:
        """Whether the request changes the current account rather than replacing it.

        A PATCH changes it unless the country differs. A POST does if it sends the account back,
        which the masked number shows: the client could not know the mask otherwise.
        """
        if self.mode == "patch":
            return _same_country(before, written)
        if word == "bank":
            return is_masked(sent, before.fields) and _same_country(before, written)
        bank = loose.inside(Problems(), loose.inside(Problems(), self.sent, "accounts"), "bank")
        held = self._before("bank")
        is_sent_back = held is not None and is_masked(bank, held.fields)
        return is_sent_back and sent.get("address") == before.fields["emailAddress"]

    def _change(
        self, word: str, before: Account, written: Written, government_id: object = None
    ) -> None:
        found = Problems()
        country = str(before.fields.get("country"))
        self._read_government_id(word, government_id, country)
        fields = accounts.read_change(self.world, found, self._with_ids(), before, written.body)
        self._say(word, written, found)
        # An unmasked number is always a change: clients cannot know that it equals the stored one.
        said = fields != before.fields or not written.body.keys().isdisjoint(MASKED)
        if said or (self.plan.primary == before.type and not before.primary):
            self.plan.changed.append((before, fields))

    def _make(
        self, word: str, before: Account | None, written: Written, government_id: object
    ) -> None:
        found = Problems()
        body = {"type": self._kind(word), **written.body}
        if word == "bank":
            body.setdefault("accountHolderName", self._own_name())
            self._read_government_id(word, government_id, body.get("country"))
        keeps_primary = before is not None and before.primary and self.plan.primary is None
        body["primary"] = keeps_primary or self.plan.primary == body["type"]
        made = accounts.draft(self.world, found, self._with_ids(), body)
        self._say(word, written, found)
        self.plan.made.append((made, before))

    def _own_name(self) -> str:
        # A wrong name of the recipient is reported for its own field, so a placeholder will do.
        name = self.fields.get("name")
        return name if isinstance(name, str) and name else "-"

    def _with_ids(self) -> JsonObject:
        ids = self.plan.government_ids
        return self.fields if ids is None else {**self.fields, "governmentIds": ids}

    def _read_government_id(self, word: str, value: object, country: object) -> None:
        if word == "bank" and is_country(country):
            country = str(country)
            # The ids already include the request's `ssn`, if any: this id is added to them.
            together = self.recipient is None or self.ssn is not None
            if self.recipient and value == government_ids.shown(self.recipient.fields, country):
                return  # Sent back as shown.
            keep = government_ids.added if together else government_ids.replaced
            inside = self.accounts.within("bank.")
            if self._is_another_ssn(value, country):
                inside.invalid("governmentId", "Is not the ssn sent with it")
                return
            ids = keep(inside, "governmentId", value, country, self.fields)
            self.plan.government_ids = ids

    def _is_another_ssn(self, value: object, country: str) -> bool:
        """Whether the id contradicts the request's `ssn`: a recipient has one US id."""
        now = government_ids.shown(self.recipient.fields, country) if self.recipient else None
        is_new = value is not None and value != now
        of_us = country == government_ids.SSN_COUNTRY and self.ssn is not None
        return is_new and of_us and value != self.ssn

    def _say(self, word: str, written: Written, found: Problems) -> None:
        place = f"accounts.{word}"
        names = {name: f"{place}.{sent}" for name, sent in written.names.items()}
        names["governmentIds"] = f"{place}.governmentId"
        if word == "bank" and _has_no_number(written.body):
            # Section 4.2: in an IBAN country the client must send the IBAN, not the number.
            names["accountNum"] = f"{place}.iban"
        if "currency" not in written.names:
            names["currency"] = "primary.currency"
            if self.is_currency_told:
                found.found[:] = [one for one in found.found if one.field != "currency"]
        say(self.problems, found, names, f"{place}.")


def _has_no_number(body: JsonObject) -> bool:
    """Whether IBAN and account number are both missing in a country with IBANs."""
    is_missing = blank(body.get("iban")) and blank(body.get("accountNum"))
    return is_missing and body.get("country") in IBAN_LENGTH


def _leave_out_currency_shown(before: Account, written: Written) -> None:
    """Remove an unchanged currency from an account, so that `primary.currency` applies."""
    if written.body.get("currency") == before.fields.get("currency"):
        written.body.pop("currency", None)
        written.names.pop("currency", None)


def _same_country(before: Account, written: Written) -> bool:
    now = before.fields.get("country")
    return bool(written.body.get("country", now) == now)


def _is_given(word: str, sent: object, method: object) -> bool:
    """Whether the body has this method."""
    # Typed clients send an object with blank fields for a method that they do not set.
    says_nothing = isinstance(sent, dict) and all(map(blank, sent.values()))
    return sent is not None and not (says_nothing and method != word)


def _hold(problems: Problems, sent: JsonObject, before: JsonObject) -> JsonObject:
    after = dict(before)
    if sent.get("limit") is not None:
        after["limit"] = loose.whole(sent["limit"])
        if after["limit"] is None:
            problems.invalid("limit", "Must be a whole number")
    if sent.get("active") is not None:
        after["active"] = loose.truth(sent["active"])
        if after["active"] is None:
            problems.invalid("active", "Must be true or false")
    return after
