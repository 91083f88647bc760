"""The operations of parent merchants and their sub-merchants (current interface, section 4.4)."""

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
    """Onboarding that is incomplete leaves it pending; its keys work all the same."""
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
    """Its world is in the sandbox, wherever the parent calls from."""
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
    """The only time that the pair is shown."""
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
    """403 with `invalid_field` is this operation's own. The keys go with the merchant."""
    parent = _parent(arrived)
    wanted = str(arrived.body.get("id", ""))
    for each in arrived.world.merchants.known.values():
        theirs = each.parent_id == parent.merchant_id and each.sandbox
        if theirs and str(each.id) == wanted and each.status != "deleted":
            each.status = "deleted"
            arrived.world.merchants.remove_keys(each)
            return {}
    raise Refusal(
        Problem("invalid_field", "Is not the id of a sandbox sub-merchant", "id"), http_status=403
    )


def _parent(arrived: Arrived) -> Merchant:
    """Raises Refusal `not_authorized`: the partner feature is the parent's."""
    caller = arrived.world.owner
    if caller.parent_id is not None or not arrived.world.switches.partner:
        raise _not_authorized()
    return caller


def _not_authorized() -> Refusal:
    return Refusal(Problem("not_authorized", "The key has no permission for this"))


def update_onboarding(arrived: Arrived) -> JsonObject:
    """Must be called with the sub-merchant's key."""
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
    """One account for each currency with a balance; the memo routes funds to the merchant."""
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
    """What only a document that is uploaded elsewhere could tell is null."""
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
    """The colors of whose key it is; those not given stay as they were."""
    problems = Problems()
    if not arrived.body.get("colors"):
        problems.empty("colors")
    sent = rules.inside(problems, arrived.body, "colors")
    checks = dict.fromkeys(rules.COLORS, rules.color)
    colors = rules.read(problems.within("colors."), sent, checks, required=False)
    problems.refuse_if_any()
    arrived.world.owner.colors |= colors
    return {}
