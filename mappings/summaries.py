"""The batch summary (legacy interface, section 2); fields the service omits are computed."""

from collections.abc import Iterable, Mapping, Sequence

from mappings import current, money
from mappings.balances import (
    SERVICE,
    compute_available_funds,
    determine_payment_method,
    has_sufficient_funds,
    split_off_wallet_payments,
    sum_amount_field,
)
from mappings.batch_views import Batch, build_legacy_batch
from mappings.effects import JSON
from mappings.objects import drop_nulls, format_payout_method_display

FEE_FIELDS = ("fees", "recipientFees", "merchantFees")

_BATCH_FIELDS = [
    "status",
    "currency",
    "description",
    "sentAt",
    "completedAt",
    "createdAt",
    "updatedAt",
]

_FUNDS_FIELDS = frozenset({"GatewayTotal", "ServiceTotal"})


def needs_balances(batch: Batch) -> bool:
    """Whether something in the summary has to be computed from the merchant's balances."""
    funds = batch.service_fields.get("merchantBalances")
    is_given = isinstance(funds, dict) and drop_nulls(funds).keys() >= _FUNDS_FIELDS
    return not (batch.status and is_given and batch.service_fields.get("enoughFunds") is not None)


def build_summary(
    batch: Batch, balances: Sequence[Mapping[str, JSON]], now: str
) -> dict[str, JSON]:
    """Builds a ``Batch summary``. A value of the service takes precedence over a computed one."""
    batch_answer = build_legacy_batch(batch)
    wallet_payments, other_payments = split_off_wallet_payments(batch.payments)
    in_wallet, in_accounts = compute_available_funds(balances, batch.currency)
    batch_fields = {name: batch_answer[name] for name in _BATCH_FIELDS}
    computed: dict[str, JSON] = {
        "id": batch.answer_id,
        "processed_by": "API",
        "errors": [],
        "serverTime": now,
        **batch_fields,
        "quoteExpiredAt": None,
        "methods": _map_totals_by_payout_method(batch.payments),
        "ServiceTotal": compute_totals(other_payments),
        "GatewayTotal": compute_totals(wallet_payments),
        "total": compute_totals(batch.payments),
        "merchantBalances": {
            "GatewayTotal": money.convert_to_json_number(in_wallet),
            "ServiceTotal": money.convert_to_json_number(in_accounts),
        },
        "enoughFunds": has_sufficient_funds(balances, batch.payments, batch.currency),
    }
    service_values = {
        name: batch.service_fields.get(name)
        for name in computed.keys() - batch_fields.keys() - {"id"}
    }
    summary: dict[str, JSON] = _complete_service_value(drop_nulls(service_values), computed)
    return summary


_NUMERIC_FIELDS = frozenset({"count", "value", "net", *FEE_FIELDS})


def _complete_service_value(service_value: JSON, computed: JSON, name: str = "") -> JSON:
    """Completes the service's value with the computed one, recursively in objects.

    Totals that a service writes as text become numbers, as the legacy document has them.
    """
    if name in _NUMERIC_FIELDS and (amount := money.parse_amount(service_value)) is not None:
        return money.convert_to_json_number(amount)
    if not isinstance(service_value, dict):
        return computed if isinstance(computed, dict) else service_value
    is_completed = isinstance(computed, dict)
    fields = computed if is_completed else {}
    return fields | {
        name: _complete_service_value(value, fields.get(name), name)
        for name, value in service_value.items()
        if value is not None or not is_completed
    }


def _map_totals_by_payout_method(payments: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Builds the totals by payout method; both methods of the legacy document are always there."""
    # Clients index the result by method without checking that it is there.
    by_method: dict[str, list[Mapping[str, JSON]]] = {current.BANK_TRANSFER: [], current.WALLET: []}
    for payment in payments:
        by_method.setdefault(determine_payment_method(payment), []).append(payment)
    return {
        method: {
            **compute_totals(method_payments),
            "accountType": current.WALLET if method == current.WALLET else SERVICE,
            "displayName": format_payout_method_display(method),
        }
        for method, method_payments in by_method.items()
    }


def compute_totals(payments: Iterable[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Computes count, value, fees, recipientFees, merchantFees and net, as exact JSON numbers."""
    payment_list = list(payments)
    sums = {name: sum_amount_field(payment_list, name) for name in FEE_FIELDS}
    value = sum_amount_field(payment_list, "sourceAmount")
    return {
        "count": len(payment_list),
        "value": money.convert_to_json_number(value),
        **{name: money.convert_to_json_number(amount) for name, amount in sums.items()},
        "net": money.convert_to_json_number(money.sum_decimals([value, sums["merchantFees"]])),
    }
