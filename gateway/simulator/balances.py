"""Balances of a merchant (current interface, sections 1, 4.3; earlier interface, section 2)."""

from decimal import Decimal

from gateway.simulator import money
from gateway.simulator.state import Batch, World
from gateway.simulator.wire import JsonObject


def covers(world: World, batch: Batch) -> bool:
    return world.balance(batch.currency) >= batch.cost


def debit(world: World, currency: str, amount: Decimal) -> None:
    world.balances[currency] = money.less(world.balance(currency), amount)


def credit(world: World, currency: str, amount: Decimal) -> None:
    world.balances[currency] = money.total((world.balance(currency), amount))


def shown(world: World) -> JsonObject:
    """Build the response: an object by currency as in the earlier interface, or a list.

    The document does not show it. The wallet balance is present once a test has set one. No
    payment debits it, because the document does not say which balance funds payments to wallets.
    """
    words = world.words
    entries = {
        currency: _entry(amount, currency, words.service, position == 0)
        for position, (currency, amount) in enumerate(world.balances.items())
    }
    if world.wallet_balance is not None:
        currency, amount = world.wallet_balance
        number = f"{world.merchant}@example.com"
        entries[words.wallet] = _entry(amount, currency, words.wallet, number=number)
    if world.switches.balance_shape == "list":
        return {"balances": list(entries.values())}
    return {"balances": entries}


def _entry(
    amount: Decimal, currency: str, kind: str, primary: bool = False, number: str | None = None
) -> JsonObject:
    return {
        "primary": primary,
        "amount": money.text(amount),
        "currency": currency,
        "type": kind,
        "accountNumber": number,
    }
