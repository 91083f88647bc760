"""JSON of recipients and accounts (current interface, sections 2.3 to 2.7)."""

from decimal import Decimal

from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET
from gateway.simulator.countries import SEPA_COUNTRIES, WIRE_COUNTRIES
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipients import ADDRESS_CHECKS
from gateway.simulator.state import (
    Account,
    Recipient,
    Tenant,
    format_optional_timestamp,
    format_timestamp,
)
from gateway.simulator.values import mask_value

BANK_NAMES = ("Harbour Bank", "Meridian Savings", "Unión de Crédito", "First Orchard Bank")

# Routes of bank transfers, and minimum and fee by route: invented, in the document's format.
LOCAL_ROUTES = {"US": "ach", "GB": "fps", "CA": "eft", "AU": "eft", "NZ": "eft"}
ROUTE_MINIMUMS = {"ach": "1", "fps": "1", "eft": "1", "sepa": "2", "transfer": "5", "wire": "30"}
ROUTE_FEES = {"ach": "1.00", "fps": "1.00", "eft": "1.50", "sepa": "1.00", "wire": "15.00"}


def build_recipient(tenant: Tenant, recipient: Recipient) -> JsonObject:
    fields, primary_account, address = (
        recipient.fields,
        recipient.primary_account,
        recipient.address,
    )
    return {
        "id": recipient.id,
        "referenceId": fields.get("referenceId"),
        "type": fields["type"],
        "email": fields["email"],
        "name": fields["name"],
        "firstName": fields.get("firstName"),
        "lastName": fields.get("lastName"),
        "status": recipient.status,
        "complianceStatus": recipient.compliance_status,
        "compliance": {
            "status": recipient.compliance_status,
            "checkedAt": format_optional_timestamp(recipient.compliance_checked_at),
        },
        tenant.vocabulary.avatar_url: f"https://example.com/avatars/{recipient.id}.png",
        "language": fields.get("language", "en"),
        "dob": fields.get("dob"),
        "placeOfBirth": fields.get("placeOfBirth"),
        "passport": fields.get("passport"),
        "ssn": mask_value(fields.get("ssn")),
        "governmentIds": [
            {**government_id, "value": mask_value(government_id["value"])}
            for government_id in fields.get("governmentIds", [])
        ],
        "address": {name: address.get(name) for name in ADDRESS_CHECKS},
        "routeType": _select_payout_route(primary_account),
        "routeMinimum": compute_route_minimum(recipient),
        "estimatedFees": compute_estimated_fees(recipient),
        "payoutMethod": primary_account.type if primary_account else None,
        "primaryCurrency": fields.get("primaryCurrency"),
        "accounts": [build_account(account) for account in recipient.accounts],
        "tags": fields.get("tags", []),
        "contactEmails": fields.get("contactEmails", []),
        "createdAt": format_timestamp(recipient.created_at),
        "updatedAt": format_timestamp(recipient.updated_at),
        **recipient.overrides,
    }


def compute_route_minimum(recipient: Recipient) -> str | None:
    # Section 2.3: null means that the profile is incomplete.
    if recipient.status == "incomplete":
        return None
    return ROUTE_MINIMUMS.get(str(_select_payout_route(recipient.primary_account)))


def compute_estimated_fees(recipient: Recipient) -> str:
    return ROUTE_FEES.get(str(_select_payout_route(recipient.primary_account)), "0.00")


def find_shown_minimum_amount(recipient: Recipient) -> Decimal | None:
    """Returns the minimum amount as responses show it, including a test's override."""
    amount = recipient.overrides.get("routeMinimum", compute_route_minimum(recipient))
    return None if amount is None else Decimal(str(amount))


def compute_payment_fee(recipient: Recipient) -> Decimal:
    return Decimal(str(recipient.overrides.get("estimatedFees", compute_estimated_fees(recipient))))


def _select_payout_route(account: Account | None) -> str | None:
    if account is None:
        return None
    if account.type != BANK_TRANSFER:
        return "transfer"
    country = account.fields["country"]
    if country in WIRE_COUNTRIES:
        return "wire"
    if country in SEPA_COUNTRIES and account.fields["currency"] == "EUR":
        return "sepa"
    return LOCAL_ROUTES.get(country, "transfer")


def build_account(account: Account) -> JsonObject:
    common_fields = {
        "recipientAccountId": account.id,
        "primary": account.is_primary,
        "currency": account.fields["currency"],
        "type": account.type,
    }
    if account.type == BANK_TRANSFER:
        return common_fields | _build_bank_fields(account.fields)
    if account.type == CHECK:
        return common_fields | {"mailing": account.fields["mailing"]}
    address_field = "phoneNumber" if account.type == MOBILE_WALLET else "emailAddress"
    return common_fields | {address_field: account.fields[address_field]}


def _build_bank_fields(fields: JsonObject) -> JsonObject:
    number = str(fields.get("accountNum") or fields.get("iban"))
    return {
        "country": fields["country"],
        "accountHolderName": fields["accountHolderName"],
        "accountNum": mask_value(fields.get("accountNum") or None),
        "iban": mask_value(fields.get("iban") or None),
        "swiftBic": fields.get("swiftBic"),
        "bankId": fields.get("bankId"),
        "branchId": fields.get("branchId"),
        # Any name will do, as long as one account always shows the same.
        "bankName": BANK_NAMES[sum(map(ord, number)) % len(BANK_NAMES)],
        "bankAddress": fields.get("bankAddress"),
        "bankCity": fields.get("bankCity"),
        "bankRegionCode": fields.get("bankRegion"),
        "bankPostalCode": fields.get("bankPostalCode"),
    }
