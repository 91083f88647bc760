"""Objects that several operations share: their field tables and the builders of their answers."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from babel.numbers import get_currency_name

from mappings import current, legacy, money
from mappings.effects import JSON, LegacyOptions
from mappings.fields import FieldTable

Facts = Mapping[str, JSON]
"""The facts that the gateway stores about a recipient, because the service cannot store them.

``status`` is the legacy status that a client set last: ``disabled``, ``inactive`` or ``suspended``.
``deleted`` hides the recipient; ``still_there`` means that the service has not deleted it yet.
``autoswitch`` and ``holdup`` are the values that a client set.
"""


def drop_nulls(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the fields that are not null; the service sends null for a missing value."""
    return {name: value for name, value in fields.items() if value is not None}


# Field tables

ADDRESS = FieldTable(
    (legacy.Address,),
    (current.Address,),
    same_names=("street1", "street2", "city", "region", "postalCode", "country", "phone"),
)

_COMPLIANCE_REASON = "set by the service; `review` is shown as `pending`"

COMPLIANCE = FieldTable(
    (legacy.Compliance,),
    (current.Compliance,),
    read_only={"checkedAt": "assigned by the service"},
    set_in_code={"status": "`review` is shown as `pending`"},
)

RECIPIENT = FieldTable(
    (legacy.Recipient, legacy.RecipientBody),
    (current.Recipient,),
    same_names=(
        *("referenceId", "type", "email", "firstName", "lastName", "dob", "passport"),
        "language",
    ),
    nested={"address": ADDRESS},
    read_only={
        **dict.fromkeys(("id", "createdAt", "updatedAt", "avatarUrl"), "assigned by the service"),
        "payoutMethod": "the type of the primary account",
        "name": "sent for a business; the service derives it for an individual",
        "primaryCurrency": "changed through `currency`",
    },
    set_in_code={
        "compliance": _COMPLIANCE_REASON,
        "complianceStatus": _COMPLIANCE_REASON,
        "status": ("status", "the gateway stores `disabled` and `inactive`"),
        "ssn": ("governmentIds", "a US government id"),
        "payout": "recipient accounts",
        "currency": ("primaryCurrency", "the name of the primary currency in requests"),
    },
)

BANK = FieldTable(
    (legacy.Bank, legacy.BankBody),
    (current.Account,),
    same_names=(
        *("country", "currency", "iban", "swiftBic", "accountNum"),
        *("bankAddress", "bankCity", "bankPostalCode"),
    ),
    renamed={
        "name": ("accountHolderName", "accountHolderName"),
        "bankProvince": ("bankRegion", "bankRegionCode"),
    },
    set_in_code={
        "bankRegion": "sent by some clients instead of `bankProvince`",
        "routing": ("branchId", "US; also AU, GB, NZ and IN"),
        "branchNum": ("branchId", "Canada; also AU, GB, NZ and IN"),
        "institution": ("bankId", "Canada; for other countries, answers show the bank's name"),
        "branch": "only in answers: the branch id",
        "governmentId": "a government id of the recipient",
    },
)

WALLET = FieldTable(
    (legacy.Wallet, legacy.WalletBody),
    (current.Account,),
    renamed={"address": ("emailAddress", "emailAddress")},
)

# The current document takes payments and their batches from the legacy one (section 2.2).
PAYMENT_BATCH = FieldTable(
    (legacy.PaymentBatch,),
    (legacy.PaymentBatch,),
    read_only=dict.fromkeys(
        ("id", "createdAt", "updatedAt", "sentAt", "completedAt"), "assigned by the service"
    ),
)

SENT_AMOUNT_FIELDS = ("sourceAmount", "targetAmount", "targetCurrency")
SENT_FIELDS = (*SENT_AMOUNT_FIELDS, "memo")
"""The fields of a payment that clients set, besides its recipient; ``batch_bodies`` sends them."""

PAYMENT = FieldTable(
    (legacy.Payment,),
    (legacy.Payment,),
    nested={"batch": PAYMENT_BATCH},
    read_only={
        **dict.fromkeys(SENT_FIELDS, "a value that the payment has already is not sent"),
        "sourceCurrency": "the currency of the batch",
        **dict.fromkeys(
            (
                *("id", "exchangeRate", "fxRate", "fees", "recipientFees", "merchantFees"),
                *("processedAt", "createdAt", "updatedAt"),
            ),
            "assigned by the service",
        ),
    },
    set_in_code={
        "recipient": "the recipient as in all answers",
        "status": "statuses that the legacy document lacks are shown as `pending`",
        "sourceCurrencyName": "the CLDR name if the service sends none",
        "targetCurrencyName": "the CLDR name if the service sends none",
        "compliance": "`review` is shown as `pending`",
    },
)

# Recipient answers


def choose_legacy_recipient_status(recipient: Mapping[str, JSON], facts: Facts) -> JSON:
    """Returns the stored legacy status if it still fits the service's status, else the latter."""
    word = facts.get("status")
    if word and is_legacy_status_still_valid(word, recipient.get("status")):
        return word
    # Only payments show deleted recipients, and the legacy document has no word for that status.
    return "inactive" if is_deleted_for_clients(recipient, facts) else recipient.get("status")


ARCHIVED = "archived"
"""The current status that legacy clients see as deleted (current interface, section 3)."""

UPSTREAM_STATUS = {"disabled": "suspended", "inactive": "active"}
"""Legacy statuses that the service lacks, and the current status that is set instead."""


def is_legacy_status_still_valid(word: str, status: JSON) -> bool:
    """Whether the service's status is still the one that was set for this legacy status."""
    return status is not None and bool(UPSTREAM_STATUS.get(word, word) == status)


def derive_legacy_compliance_status(status: JSON) -> JSON:
    return "pending" if status == "review" else status


def is_deleted_for_clients(recipient: Mapping[str, JSON], facts: Facts) -> bool:
    """Whether the recipient is deleted from the point of view of legacy clients."""
    return bool(facts.get("deleted")) or recipient.get("status") == ARCHIVED


def build_legacy_recipient(
    recipient: Mapping[str, JSON], facts: Facts, options: LegacyOptions
) -> dict[str, JSON]:
    """Builds the ``Recipient`` of the legacy interface, section 2."""
    answer, get = RECIPIENT.translate_to_legacy(recipient), recipient.get
    answer["status"] = choose_legacy_recipient_status(recipient, facts)
    answer["complianceStatus"] = derive_legacy_compliance_status(get("complianceStatus"))
    answer["compliance"] = build_legacy_compliance(get("compliance"))
    answer["ssn"] = get("ssn") or find_masked_government_id(recipient, "US")
    answer["payout"] = payout = build_legacy_payout(recipient, facts, options) or {"method": None}
    # The service may omit its own word, or show it later than the account that was just added.
    if method := payout["method"]:
        answer["payoutMethod"] = ACCOUNT_TYPE_BY_METHOD.get(method, method)
    return answer


def build_legacy_compliance(compliance: JSON) -> JSON:
    # Passed on as it is (contract, section 0): the document shows an object, but null occurs.
    if not isinstance(compliance, dict):
        return compliance
    answer = COMPLIANCE.translate_to_legacy(compliance)
    answer["status"] = derive_legacy_compliance_status(compliance.get("status"))
    return answer


GOVERNMENT_ID_TYPES = {"US": "SSN"}
"""The type that the gateway creates, by country; ``OTHER_GOVERNMENT_ID`` for all others."""

OTHER_GOVERNMENT_ID = "other"


def find_masked_government_id(recipient: Mapping[str, JSON], country: JSON) -> JSON:
    """Returns the masked government id of a country, of the type that the gateway creates."""
    # Legacy fields exist only for the types that the gateway itself creates.
    shown = country, GOVERNMENT_ID_TYPES.get(country, OTHER_GOVERNMENT_ID)
    for entry in recipient.get("governmentIds") or ():
        if (entry.get("country"), entry.get("type")) == shown:
            return entry.get("value")
    return None


# Payout answers

METHOD_BY_ACCOUNT_TYPE = {current.BANK_TRANSFER: legacy.BANK, current.WALLET: legacy.WALLET}
"""Account type to payout method; any other type is shown unchanged."""

ACCOUNT_TYPE_BY_METHOD = {method: type_ for type_, method in METHOD_BY_ACCOUNT_TYPE.items()}


_TYPE_BY_FIELD = {
    "emailAddress": current.WALLET,
    "phoneNumber": "mobile-wallet",
    "mailing": "check",
}
"""Fields that only accounts of one type have (current interface, section 2.6)."""


def determine_account_type(account: Mapping[str, JSON]) -> str:
    """Returns the type of an account, derived from its fields if the service omits it."""
    if type_ := account.get("type"):
        return str(type_)
    for name, type_ in _TYPE_BY_FIELD.items():
        if account.get(name):
            return type_
    return current.BANK_TRANSFER


def format_payout_method_display(type_: JSON) -> JSON:
    """Formats an account type for display: ``bank-transfer`` as ``Bank Transfer``."""
    return type_.replace("-", " ").title() if isinstance(type_, str) else None


DEFAULT_HOLD = {"limit": 1000, "active": False}
"""``autoswitch`` and ``holdup`` if no client has set them; the service has no counterpart."""


def map_shown_accounts_by_type(recipient: Mapping[str, JSON]) -> dict[str, dict[str, JSON]]:
    """Returns the account of each type that legacy clients see: the primary one, else the last."""
    accounts: dict[str, dict[str, JSON]] = {}
    for account in recipient.get("accounts") or []:
        type_ = account.get("type")
        if not type_ or type(type_) is not str:
            type_ = determine_account_type(account)
        previous = accounts.get(type_)
        if previous is None or not previous.get("primary"):
            accounts[type_] = account
    return accounts


def find_primary_account(recipient: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    accounts: Sequence[Mapping[str, JSON]] = recipient.get("accounts") or ()
    for account in accounts:
        if account.get("primary"):
            return account
    return accounts[-1] if accounts else None


def determine_shown_payout_currency(recipient: Mapping[str, JSON]) -> JSON:
    """Returns the currency code that ``primary.currency`` of a payout shows."""
    primary = find_primary_account(recipient) or {}
    return primary.get("currency") or recipient.get("primaryCurrency")


def build_legacy_payout(
    recipient: Mapping[str, JSON], facts: Facts, options: LegacyOptions
) -> dict[str, JSON] | None:
    """Builds the payout object of the legacy interface, section 2; None without an account."""
    # The legacy interface has one payout with a primary method, so the primary account decides.
    primary = find_primary_account(recipient)
    if primary is None:
        return None
    type_ = determine_account_type(primary)
    method = METHOD_BY_ACCOUNT_TYPE.get(type_, type_)
    code = primary.get("currency") or recipient.get("primaryCurrency")
    visible = map_shown_accounts_by_type(recipient)
    accounts: dict[str, JSON] = {}
    if bank := visible.get(current.BANK_TRANSFER):
        accounts["bank"] = build_legacy_bank(bank, recipient)
    if wallet := visible.get(current.WALLET):
        accounts["wallet"] = WALLET.translate_to_legacy(wallet)
    return {
        **build_legacy_payout_holds(facts),
        "primary": {"method": method, "currency": build_legacy_currency(code, options)},
        "method": method,
        "methodDisplay": format_payout_method_display(type_),
        "accounts": accounts,
    }


def build_legacy_payout_holds(facts: Facts) -> dict[str, dict[str, JSON]]:
    return {
        "autoswitch": {**DEFAULT_HOLD, **(facts.get("autoswitch") or {})},
        "holdup": {**DEFAULT_HOLD, **(facts.get("holdup") or {})},
    }


BRANCH_NAMES_BY_COUNTRY: Mapping[JSON, Sequence[str]] = {
    "CA": ("branchNum",),
    "US": ("routing",),
    **dict.fromkeys(("AU", "GB", "NZ", "IN"), ("branchNum", "routing")),
}
"""The names by which clients may send a country's branch id; answers have all of them."""


def build_legacy_bank(
    account: Mapping[str, JSON], recipient: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds ``accounts.bank`` of the legacy interface, section 2."""
    country, branch = account.get("country"), account.get("branchId")
    # The table has null for what is set here.
    answer = BANK.translate_to_legacy(account)
    answer["institution"] = account.get("bankId" if country == "CA" else "bankName")
    answer["branch"] = branch
    for name in BRANCH_NAMES_BY_COUNTRY.get(country, ()):
        answer[name] = branch
    # Just after a write the account has the name of the request instead of that of responses.
    answer["bankProvince"] = account.get("bankRegionCode", account.get("bankRegion"))
    # The service masks these, but its response to a write may not show what was sent.
    for name in ("accountNum", "iban"):
        if number := account.get(name):
            answer[name] = mask_number(number)
    answer["governmentId"] = find_masked_government_id(recipient, country)
    return answer


def mask_number(number: JSON) -> JSON:
    """Masks an account number, IBAN or government id except for its last two characters."""
    if not isinstance(number, str) or not number or "*" in number:
        return number
    # A mask has at least two asterisks, so that is_mask recognizes that of a very short number.
    return "*" * max(len(number) - 2, 2) + number[-2:]


@lru_cache(maxsize=512)
def look_up_currency_name(code: str) -> str:
    """Returns the English name of a currency from CLDR."""
    return get_currency_name(code, locale="en")


def build_legacy_currency(code: str | None, options: LegacyOptions) -> dict[str, Any]:
    """Builds ``primary.currency``, which the document shows both flat and nested."""
    flat: dict[str, Any] = {"code": code, "name": look_up_currency_name(code) if code else None}
    match options.primary_currency:
        case "both":
            return {**flat, "currency": flat}
        case "flat":
            return flat
        case "nested":
            return {"currency": flat}


# Payment answers


LEGACY_PAYMENT_STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def derive_legacy_payment_status(payment: Mapping[str, JSON]) -> JSON:
    status = payment.get("status")
    # Clients may fail on unknown words (contract, section 5).
    return status if status in LEGACY_PAYMENT_STATUSES else "pending"


def build_legacy_payment(
    payment: Mapping[str, JSON], recipient: Mapping[str, JSON] | None
) -> dict[str, JSON]:
    """Builds the ``Payment`` of the legacy interface, section 2, around a legacy ``recipient``."""
    answer = PAYMENT.translate_to_legacy(payment)
    answer["recipient"] = recipient
    answer["status"] = derive_legacy_payment_status(payment)
    answer["compliance"] = build_legacy_compliance(payment.get("compliance"))
    for side in ("source", "target"):
        code, name = payment.get(f"{side}Currency"), f"{side}CurrencyName"
        answer[name] = payment.get(name) or (look_up_currency_name(code) if code else None)
    # Some services omit the target amount if there is no conversion; clients expect it.
    target = answer["targetCurrency"]
    if answer["targetAmount"] is None and target and target == answer["sourceCurrency"]:
        answer["targetAmount"] = answer["sourceAmount"]
    for name in AMOUNT_FIELDS:
        answer[name] = money.format_amount_unless_text(answer[name])
    for name in RATE_FIELDS:
        answer[name] = money.format_rate(answer[name])
    return answer


AMOUNT_FIELDS = ("sourceAmount", "targetAmount", "fees", "recipientFees", "merchantFees")
RATE_FIELDS = ("exchangeRate", "fxRate")
"""Legacy clients get strings; the current document does not say how services write these."""
