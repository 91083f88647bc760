"""JSON of recipients and accounts (current interface, sections 2.3 to 2.7)."""

from decimal import Decimal

from gateway.simulator.account_rules import BANK, CHECK, MOBILE_WALLET
from gateway.simulator.countries import SEPA
from gateway.simulator.rules import ADDRESS
from gateway.simulator.state import Account, Recipient, World, iso
from gateway.simulator.values import mask
from gateway.simulator.wire import JsonObject

BANK_NAMES = ("Harbour Bank", "Meridian Savings", "Unión de Crédito", "First Orchard Bank")

# Routes of bank transfers, and minimum and fee by route: invented, in the document's format.
LOCAL_ROUTE = {"US": "ach", "GB": "fps", "CA": "eft", "AU": "eft", "NZ": "eft"}
ROUTE_MINIMUM = {"ach": "1", "fps": "1", "eft": "1", "sepa": "2", "transfer": "5", "wire": "30"}
ROUTE_FEE = {"ach": "1.00", "fps": "1.00", "eft": "1.50", "sepa": "1.00", "wire": "15.00"}


def recipient(world: World, shown: Recipient) -> JsonObject:
    fields, primary, address = shown.fields, shown.primary, shown.address
    checked_at = shown.compliance_checked_at
    return {
        "id": shown.id,
        "referenceId": fields.get("referenceId"),
        "type": fields["type"],
        "email": fields["email"],
        "name": fields["name"],
        "firstName": fields.get("firstName"),
        "lastName": fields.get("lastName"),
        "status": shown.status,
        "complianceStatus": shown.compliance_status,
        "compliance": {
            "status": shown.compliance_status,
            "checkedAt": iso(checked_at) if checked_at else None,
        },
        world.words.avatar_url: f"https://example.com/avatars/{shown.id}.png",
        "language": fields.get("language", "en"),
        "dob": fields.get("dob"),
        "placeOfBirth": fields.get("placeOfBirth"),
        "passport": fields.get("passport"),
        "ssn": mask(fields.get("ssn")),
        "governmentIds": [
            {**entry, "value": mask(entry["value"])} for entry in fields.get("governmentIds", [])
        ],
        "address": {name: address.get(name) for name in ADDRESS},
        "routeType": _route(world, primary),
        "routeMinimum": route_minimum(world, shown),
        "estimatedFees": estimated_fees(world, shown),
        "payoutMethod": primary.type if primary else None,
        "primaryCurrency": fields.get("primaryCurrency"),
        "accounts": [account(each) for each in shown.accounts],
        "tags": fields.get("tags", []),
        "contactEmails": fields.get("contactEmails", []),
        "createdAt": iso(shown.created_at),
        "updatedAt": iso(shown.updated_at),
        **shown.extra,
    }


def route_minimum(world: World, shown: Recipient) -> str | None:
    # Section 2.3: null means that the profile is incomplete.
    if shown.status == "incomplete":
        return None
    return ROUTE_MINIMUM.get(str(_route(world, shown.primary)))


def estimated_fees(world: World, shown: Recipient) -> str:
    return ROUTE_FEE.get(str(_route(world, shown.primary)), "0.00")


def minimum(world: World, shown: Recipient) -> Decimal | None:
    """Return the minimum amount as responses show it, including a test's override."""
    told = shown.extra.get("routeMinimum", route_minimum(world, shown))
    return None if told is None else Decimal(str(told))


def fee(world: World, shown: Recipient) -> Decimal:
    return Decimal(str(shown.extra.get("estimatedFees", estimated_fees(world, shown))))


def _route(world: World, primary: Account | None) -> str | None:
    if primary is None:
        return None
    if primary.type != BANK:
        return "transfer"
    country = primary.fields["country"]
    if country in world.switches.wire_countries:
        return "wire"
    if country in SEPA and primary.fields["currency"] == "EUR":
        return "sepa"
    return LOCAL_ROUTE.get(country, "transfer")


def account(shown: Account) -> JsonObject:
    common = {
        "recipientAccountId": shown.id,
        "primary": shown.primary,
        "currency": shown.fields["currency"],
        "type": shown.type,
    }
    if shown.type == BANK:
        return common | _bank(shown.fields)
    if shown.type == CHECK:
        return common | {"mailing": shown.fields["mailing"]}
    name = "phoneNumber" if shown.type == MOBILE_WALLET else "emailAddress"
    return common | {name: shown.fields[name]}


def _bank(fields: JsonObject) -> JsonObject:
    number = str(fields.get("accountNum") or fields.get("iban"))
    return {
        "country": fields["country"],
        "accountHolderName": fields["accountHolderName"],
        "accountNum": mask(fields.get("accountNum") or None),
        "iban": mask(fields.get("iban") or None),
        "swiftBic": fields.get("swiftBic"),
        "bankId": fields.get("bankId"),
        "branchId": fields.get("branchId"),
        "bankName": BANK_NAMES[sum(map(ord, number)) % len(BANK_NAMES)],
        "bankAddress": fields.get("bankAddress"),
        "bankCity": fields.get("bankCity"),
        "bankRegionCode": fields.get("bankRegion"),
        "bankPostalCode": fields.get("bankPostalCode"),
    }
