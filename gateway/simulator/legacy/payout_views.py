"""JSON of payout methods (section 2, Payout object)."""

from babel.numbers import get_currency_name

from gateway.simulator import views
from gateway.simulator.account_rules import BANK, CHECK, MOBILE_WALLET
from gateway.simulator.legacy import government_ids
from gateway.simulator.legacy.banks import branch_names
from gateway.simulator.state import Account, Recipient, World
from gateway.simulator.wire import JsonObject

DISPLAYED = {CHECK: "Check", MOBILE_WALLET: "Mobile Wallet"}


def shown_account(recipient: Recipient, kind: str) -> Account | None:
    """Return the one account of a type that legacy clients see: the primary or the last one."""
    found = [account for account in recipient.accounts if account.type == kind]
    return next((account for account in found if account.primary), found[-1] if found else None)


def method_word(world: World, account: Account | None) -> str | None:
    """Return `bank` or the wallet's word; other account types have no legacy word and stay."""
    if account is None:
        return None
    words = {BANK: "bank", world.words.wallet: world.words.legacy.wallet}
    return words.get(account.type, account.type)


def filter_word(world: World, kind: str | None) -> str | None:
    """Return the type as filters and payments name it: `bank-transfer` or the wallet's word."""
    return world.words.legacy.wallet if kind == world.words.wallet else kind


def method_display(world: World, kind: str | None) -> str | None:
    words = world.words
    own = {BANK: words.legacy.bank_method_display, words.wallet: words.legacy.wallet_method_display}
    return {**DISPLAYED, **own}.get(str(kind))


def display_name(world: World, kind: str) -> str | None:
    """Return the display name of an account type in a summary."""
    words = world.words
    own = {BANK: words.legacy.bank_display_name, words.wallet: words.legacy.wallet_display_name}
    return {**DISPLAYED, **own}.get(kind)


def of_recipient(world: World, recipient: Recipient) -> JsonObject:
    return payout(world, recipient) or {"method": None}


def payout(world: World, recipient: Recipient) -> JsonObject | None:
    """Build the payout object, or return None if the recipient has no account."""
    primary = recipient.primary
    if primary is None:
        return None
    method = method_word(world, primary)
    return {
        "autoswitch": recipient.autoswitch,
        "holdup": recipient.holdup,
        "primary": {"method": method, "currency": _currency(primary.fields["currency"])},
        "method": method,
        "methodDisplay": method_display(world, primary.type),
        "accounts": _accounts(world, recipient),
    }


def _currency(code: str) -> JsonObject:
    # Section 2 shows a flat and a nested form: this one serves clients of both.
    named = {"code": code, "name": get_currency_name(code, locale="en")}
    return {**named, "currency": named}


def _accounts(world: World, recipient: Recipient) -> JsonObject:
    bank = shown_account(recipient, BANK)
    wallet = shown_account(recipient, world.words.wallet)
    shown: JsonObject = {}
    if bank is not None:
        shown["bank"] = _bank(recipient, bank)
    if wallet is not None:
        shown[world.words.legacy.wallet] = {"address": wallet.fields["emailAddress"]}
    return shown


def _bank(recipient: Recipient, account: Account) -> JsonObject:
    shown = views.account(account)
    country = shown["country"]
    branch = shown["branchId"]
    named = branch_names(country)
    return {
        "institution": shown["bankId"] if country == "CA" else shown["bankName"],
        "branch": branch,
        "branchNum": branch if "branchNum" in named else None,
        "currency": shown["currency"],
        "country": country,
        "name": shown["accountHolderName"],
        "accountNum": shown["accountNum"],
        "routing": branch if "routing" in named else None,
        "iban": shown["iban"],
        "swiftBic": shown["swiftBic"],
        "bankAddress": shown["bankAddress"],
        "bankCity": shown["bankCity"],
        "bankProvince": shown["bankRegionCode"],
        "bankPostalCode": shown["bankPostalCode"],
        "governmentId": government_ids.shown(recipient.fields, country),
    }
