"""The batch summary (legacy interface, section 2); fields the service omits are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mappings import current, funds, money
from mappings.batch_views import Batch, build_batch_answer
from mappings.grammar import JSON
from mappings.objects import format_method_display

SERVICE = "service"
FIGURES = ("fees", "recipientFees", "merchantFees")

_OF_THE_BATCH = [
    "status",
    "currency",
    "description",
    "sentAt",
    "completedAt",
    "createdAt",
    "updatedAt",
]


def build_summary(
    batch: Batch, balances: Sequence[Mapping[str, JSON]], now: str
) -> dict[str, JSON]:
    """Build a ``Batch summary``. A value of the service takes precedence over a computed one."""
    shown = build_batch_answer(batch)
    wallet, others = funds.partition_by_wallet(batch.payments)
    held = {
        "GatewayTotal": funds.compute_available_funds(balances, batch.currency, wallet=True),
        "ServiceTotal": funds.compute_available_funds(balances, batch.currency, wallet=False),
    }
    computed: dict[str, JSON] = {
        "processed_by": "API",
        "errors": [],
        "serverTime": now,
        "quoteExpiredAt": None,
        "methods": _methods(batch.payments),
        "ServiceTotal": compute_figures(others),
        "GatewayTotal": compute_figures(wallet),
        "total": compute_figures(batch.payments),
        "merchantBalances": {name: money.to_json_number(amount) for name, amount in held.items()},
        "enoughFunds": funds.has_sufficient_funds(balances, batch.payments, batch.currency),
    }
    given = {name: batch.given[name] for name in computed if batch.given.get(name) is not None}
    told = _filled_in(_as_numbers(given), computed)
    return {
        "id": batch.id,
        "processed_by": told.pop("processed_by"),
        "errors": told.pop("errors"),
        "serverTime": told.pop("serverTime"),
        **{name: shown[name] for name in _OF_THE_BATCH},
        **told,
    }


def _filled_in(given: JSON, computed: JSON) -> JSON:
    """Complete the service's value with the computed one, recursively in objects."""
    if not isinstance(computed, dict):
        return given
    if not isinstance(given, dict):
        return computed
    told = {name: value for name, value in given.items() if value is not None}
    return computed | {name: _filled_in(value, computed.get(name)) for name, value in told.items()}


def _as_numbers(given: JSON) -> JSON:
    """Convert figures that a service writes as text to numbers, as the legacy document has them."""
    if isinstance(given, dict):
        return {
            name: _figure(value) if name in _NUMBERS else _as_numbers(value)
            for name, value in given.items()
        }
    return given


_NUMBERS = frozenset({"count", "value", "net", *FIGURES})


def _figure(value: JSON) -> JSON:
    amount = money.parse_amount(value)
    return money.to_json_number(amount) if amount is not None else value


def _methods(payments: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Build the figures by payout method; both methods of the legacy document are always there."""
    by_method: dict[str, list[Mapping[str, JSON]]] = {current.BANK_TRANSFER: [], current.WALLET: []}
    for payment in payments:
        by_method.setdefault(funds.determine_payment_method(payment), []).append(payment)
    return {
        method: {
            **compute_figures(those),
            "accountType": current.WALLET if method == current.WALLET else SERVICE,
            "displayName": format_method_display(method),
        }
        for method, those in by_method.items()
    }


def compute_figures(payments: Iterable[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Compute count, value, fees, recipientFees, merchantFees and net, as exact JSON numbers."""
    those = list(payments)
    sums = {name: funds.sum_field(those, name) for name in FIGURES}
    value = funds.sum_field(those, "sourceAmount")
    return {
        "count": len(those),
        "value": money.to_json_number(value),
        **{name: money.to_json_number(amount) for name, amount in sums.items()},
        "net": money.to_json_number(money.add_decimals(value, sums["merchantFees"])),
    }
