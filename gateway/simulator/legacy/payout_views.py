"""JSON of payout methods (section 2, Payout object)."""

from babel.numbers import get_currency_name

from gateway.simulator import views
from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import government_ids
from gateway.simulator.legacy.banks import list_branch_id_field_names
from gateway.simulator.state import Account, Recipient, Tenant

METHOD_LABELS = {CHECK: "Check", MOBILE_WALLET: "Mobile Wallet"}


def find_visible_account(recipient: Recipient, account_type: str) -> Account | None:
    """Returns the one account of a type that legacy clients see: the primary or the last one."""
    accounts = [account for account in recipient.accounts if account.type == account_type]
    return next(
        (account for account in accounts if account.is_primary), accounts[-1] if accounts else None
    )


def translate_account_to_legacy_word(tenant: Tenant, account: Account | None) -> str | None:
    """Returns `bank` or the wallet's word; other account types have no legacy word and stay."""
    if account is None:
        return None
    return "bank" if account.type == BANK_TRANSFER else translate_account_type(tenant, account.type)


def translate_account_type(tenant: Tenant, account_type: str | None) -> str | None:
    """Returns the type as filters and payments name it: `bank-transfer` or the wallet's word."""
    words = tenant.vocabulary
    return words.legacy.wallet if account_type == words.wallet else account_type


def find_account_type_label(
    tenant: Tenant, account_type: str | None, *, in_summary: bool = False
) -> str | None:
    words, wallet = tenant.vocabulary.legacy, tenant.vocabulary.wallet
    labels = (words.bank_method_display, words.wallet_method_display)
    if in_summary:
        labels = (words.bank_display_name, words.wallet_display_name)
    configured_labels = {BANK_TRANSFER: labels[0], wallet: labels[1]}
    return {**METHOD_LABELS, **configured_labels}.get(str(account_type))


def build_payout(tenant: Tenant, recipient: Recipient) -> JsonObject | None:
    """Builds the payout object, or returns None if the recipient has no account."""
    primary_account = recipient.primary_account
    if primary_account is None:
        return None
    method = translate_account_to_legacy_word(tenant, primary_account)
    return {
        "autoswitch": recipient.autoswitch,
        "holdup": recipient.holdup,
        "primary": {
            "method": method,
            "currency": _build_currency(primary_account.fields["currency"]),
        },
        "method": method,
        "methodDisplay": find_account_type_label(tenant, primary_account.type),
        "accounts": _build_accounts(tenant, recipient),
    }


def _build_currency(code: str) -> JsonObject:
    # Section 2 shows a flat and a nested form: this one serves clients of both.
    currency = {"code": code, "name": get_currency_name(code, locale="en")}
    return {**currency, "currency": currency}


def _build_accounts(tenant: Tenant, recipient: Recipient) -> JsonObject:
    bank = find_visible_account(recipient, BANK_TRANSFER)
    wallet = find_visible_account(recipient, tenant.vocabulary.wallet)
    accounts: JsonObject = {}
    if bank is not None:
        accounts["bank"] = _build_bank_account(recipient, bank)
    if wallet is not None:
        accounts[tenant.vocabulary.legacy.wallet] = {"address": wallet.fields["emailAddress"]}
    return accounts


def _build_bank_account(recipient: Recipient, account: Account) -> JsonObject:
    account_view = views.build_account(account)
    country = account_view["country"]
    branch = account_view["branchId"]
    branch_fields = list_branch_id_field_names(country)
    return {
        # Section 2: the institution code in Canada, elsewhere the name of the bank.
        "institution": account_view["bankId"] if country == "CA" else account_view["bankName"],
        "branch": branch,
        "branchNum": branch if "branchNum" in branch_fields else None,
        "currency": account_view["currency"],
        "country": country,
        "name": account_view["accountHolderName"],
        "accountNum": account_view["accountNum"],
        "routing": branch if "routing" in branch_fields else None,
        "iban": account_view["iban"],
        "swiftBic": account_view["swiftBic"],
        "bankAddress": account_view["bankAddress"],
        "bankCity": account_view["bankCity"],
        "bankProvince": account_view["bankRegionCode"],
        "bankPostalCode": account_view["bankPostalCode"],
        "governmentId": government_ids.mask_recipient_government_id(recipient.fields, country),
    }
