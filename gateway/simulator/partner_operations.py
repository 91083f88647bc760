"""Operations of parent merchants and sub-merchants (current interface, section 4.4)."""

from typing import Any

from gateway.simulator import partner_rules as rules
from gateway.simulator.arrived import Arrived
from gateway.simulator.merchants import Merchant
from gateway.simulator.refusals import Problem, Problems, Refusal
from gateway.simulator.state import World
from gateway.simulator.switches import Key
from gateway.simulator.values import mask
from gateway.simulator.wire import JsonObject

ID_LENGTH = 12
KEY_LENGTH = 20
SECRET_LENGTH = 40
SANDBOX = "sandbox"


def create_submerchant(arrived: Arrived) -> JsonObject:
    """Create a sub-merchant. Its keys work even while incomplete onboarding leaves it pending."""
    parent = _parent(arrived)
    problems = Problems()
    sent = rules.inside(problems, arrived.body, "merchant")
    told = rules.inside(problems, arrived.body, "onboarding")
    problems.refuse_if_any()
    given = rules.read(problems.within("merchant."), sent, rules.MERCHANT, required=True)
    onboarding = rules.read(problems.within("onboarding."), told, rules.ONBOARDING, required=False)
    problems.refuse_if_any()
    made = Merchant(
        arrived.world.merchants.new_id(),
        arrived.world.new_id("M-", ID_LENGTH),
        parent.environment,
        given["name"],
        given["currency"],
        parent.merchant_id,
        "approved_by_partner" if rules.onboarded(onboarding) else "pending",
        website=given["website"],
        sandbox=parent.sandbox,
        country=given["country"],
        onboarding=onboarding,
    )
    return _entered(arrived.world, made, with_keys=True)


def create_sandbox(arrived: Arrived) -> JsonObject:
    """Create a sandbox sub-merchant, in the sandbox environment even for a live parent."""
    parent = _parent(arrived)
    problems = Problems()
    sent = rules.inside(problems, arrived.body, "merchant")
    given = rules.read(problems.within("merchant."), sent, rules.MERCHANT, required=False)
    with_keys = rules.read(problems, arrived.body, {"apikey": rules.flag}, required=False)
    problems.refuse_if_any()
    made = Merchant(
        arrived.world.merchants.new_id(),
        arrived.world.new_id("M-", ID_LENGTH),
        SANDBOX,
        given.get("name", parent.name),
        given.get("currency", parent.primary_currency),
        parent.merchant_id,
        "approved",
        website=given.get("website", ""),
        sandbox=True,
        country=given.get("country"),
    )
    return _entered(arrived.world, made, with_keys=bool(with_keys.get("apikey")))


def _entered(world: World, made: Merchant, *, with_keys: bool) -> JsonObject:
    """Insert a sub-merchant and build the answer; only this one shows the keys."""
    world.merchants.add(made)
    shown: JsonObject = {"id": made.id}
    if with_keys:
        key = Key(
            world.new_id("", KEY_LENGTH).upper(),
            world.new_id("", SECRET_LENGTH),
            made.merchant_id,
            made.environment,
        )
        world.merchants.keys[key.access_key] = key
        shown |= {"accessKey": key.access_key, "secretKey": key.secret_key}
    return {"merchant": shown}


def delete_sandbox(arrived: Arrived) -> JsonObject:
    """Delete a sandbox sub-merchant and its keys. Raises ApiError `invalid_field` with 403."""
    parent = _parent(arrived)
    wanted = str(arrived.body.get("id", ""))
    for each in arrived.world.merchants.known.values():
        theirs = each.parent_id == parent.merchant_id and each.sandbox
        if theirs and str(each.id) == wanted and each.status != "deleted":
            each.status = "deleted"
            arrived.world.merchants.remove_keys(each)
            return {}
    # 403 contradicts section 7, but this operation's own description has it.
    raise Refusal(
        Problem("invalid_field", "Is not the id of a sandbox sub-merchant", "id"), http_status=403
    )


def _parent(arrived: Arrived) -> Merchant:
    """Return the calling parent merchant. Raises ApiError `not_authorized` for other callers."""
    caller = arrived.world.owner
    if caller.parent_id is not None or not arrived.world.switches.partner:
        raise _not_authorized()
    return caller


def _not_authorized() -> Refusal:
    return Refusal(Problem("not_authorized", "The key has no permission for this"))


def update_onboarding(arrived: Arrived) -> JsonObject:
    """Update the onboarding of the calling sub-merchant. Raises ApiError for a parent."""
    merchant = arrived.world.owner
    if merchant.parent_id is None:
        raise _not_authorized()
    problems = Problems()
    changed = rules.read(problems, arrived.body, rules.ONBOARDING_CHANGE, required=False)
    problems.refuse_if_any()
    merchant.onboarding |= changed
    if merchant.status == "pending" and rules.onboarded(merchant.onboarding):
        merchant.status = "approved_by_partner"
    return {}


def read_funding(arrived: Arrived) -> JsonObject:
    """List a funding account for each currency; the memo assigns a transfer to the merchant."""
    merchant = arrived.world.owner
    return {"info": [_funding(merchant, currency) for currency in arrived.world.balances]}


def _funding(merchant: Merchant, currency: str) -> JsonObject:
    return {
        "accountAddress": "1 Funding Street",
        "accountCity": "New York",
        "accountCountryCode": "US",
        "accountCurrency": currency,
        "accountName": "Payout Service Client Funds",
        "accountNum": f"{merchant.id:010d}",
        "accountPostalCode": "10001",
        "accountRegion": "NY",
        "bankAddress": "2 Funding Street",
        "bankCity": "New York",
        "bankCountry": "United States",
        "bankCountryCode": "US",
        "bankName": "Harbour Bank",
        "bankPostalCode": "10001",
        "bankRegion": "NY",
        "institution": "021",
        "referenceMemo": merchant.merchant_id,
        "routingNumber": "021000021",
    }


def write_bank_account(arrived: Arrived) -> JsonObject:
    problems = Problems()
    given = rules.read(problems, arrived.body, rules.BANK_ACCOUNT, required=True)
    problems.refuse_if_any()
    arrived.world.owner.bank_account = given
    return {"merchantBankAccount": _bank_account(given)}


def _bank_account(given: dict[str, Any]) -> JsonObject:
    # The null fields come from a document that is uploaded elsewhere.
    return {
        "currency": given["currency"],
        "accountName": given["accountName"],
        "fileLink": None,
        "completed": False,
        "iban": None,
        "accountNum": mask(given["accountNum"]),
        "swiftBic": None,
        "branchId": given["branchId"],
        "bankId": given["bankId"],
        "bankName": "Harbour Bank",
        "bankAddress": None,
        "bankCity": None,
        "bankPostalCode": None,
        "bankRegion": None,
        "country": given["bankCountry"],
        "enabled": given["enabled"],
    }


def write_widget_colors(arrived: Arrived) -> JsonObject:
    """Set the widget colors of the calling merchant; colors that are not sent stay."""
    problems = Problems()
    if not arrived.body.get("colors"):
        problems.empty("colors")
    sent = rules.inside(problems, arrived.body, "colors")
    checks = dict.fromkeys(rules.COLORS, rules.color)
    colors = rules.read(problems.within("colors."), sent, checks, required=False)
    problems.refuse_if_any()
    arrived.world.owner.colors |= colors
    return {}
