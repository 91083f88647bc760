"""Operations on balances (sections 2 and 4.5), keyed by currency and by the wallet's word."""

from gateway.simulator import money
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.refusals import not_found
from gateway.simulator.state import World
from gateway.simulator.wire import JsonObject


def read_all(asked: Asked) -> JsonObject:
    return {"balances": _service(asked.world) | _wallet(asked.world)}


def read_service(asked: Asked) -> JsonObject:
    return {"balances": _service(asked.world)}


def read_wallet(asked: Asked) -> JsonObject:
    found = _wallet(asked.world)
    if not found:
        raise not_found("Wallet account")
    return {"balances": found}


def _service(world: World) -> JsonObject:
    return {
        currency: {
            "primary": position == 0,
            "amount": money.text(amount),
            "currency": currency,
            "type": world.words.legacy.service,
            "accountNumber": None,
        }
        for position, (currency, amount) in enumerate(world.balances.items())
    }


def _wallet(world: World) -> JsonObject:
    if world.wallet_balance is None:
        return {}
    currency, amount = world.wallet_balance
    word = world.words.legacy.wallet
    entry = {
        "primary": False,
        "amount": money.text(amount),
        "currency": currency,
        "type": word,
        "accountNumber": f"{world.merchant}@example.com",
    }
    return {word: entry}
