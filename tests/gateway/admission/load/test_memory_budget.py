"""The memory budget for bodies: bounded in total and per merchant."""

from __future__ import annotations

from gateway.admission.load.requests import SMALL_BODY_BYTES, MemoryBudget

BUDGET_BYTES = 16 * 1024 * 1024


def test_merchant_holds_at_most_half_of_the_budget() -> None:
    budget = MemoryBudget(BUDGET_BYTES)
    assert budget.try_reserve("a", BUDGET_BYTES // 2)
    assert not budget.try_reserve("a", 1)
    assert budget.try_reserve("b", 1)


def test_last_eighth_is_reserved_for_small_bodies() -> None:
    budget = MemoryBudget(BUDGET_BYTES)
    assert budget.try_reserve("a", BUDGET_BYTES // 2)
    assert budget.try_reserve("b", BUDGET_BYTES // 2 - BUDGET_BYTES // 8)
    assert not budget.try_reserve("c", SMALL_BODY_BYTES + 1)
    assert budget.try_reserve("c", SMALL_BODY_BYTES)


def test_body_that_grows_large_does_not_count_as_small() -> None:
    budget = MemoryBudget(BUDGET_BYTES)
    budget.try_reserve("a", BUDGET_BYTES // 2)
    budget.try_reserve("b", BUDGET_BYTES // 2 - BUDGET_BYTES // 8)
    assert budget.try_reserve("c", SMALL_BODY_BYTES)
    assert not budget.try_reserve("c", 1, reserved=SMALL_BODY_BYTES)


def test_released_bytes_are_available_again() -> None:
    budget = MemoryBudget(BUDGET_BYTES)
    budget.try_reserve("a", BUDGET_BYTES // 2)
    budget.release("a", BUDGET_BYTES // 2)
    assert budget.reserved_bytes == 0
    assert budget.try_reserve("a", BUDGET_BYTES // 2)


def test_thousand_large_bodies_stay_within_the_budget() -> None:
    budget = MemoryBudget(BUDGET_BYTES)
    reserved_count = sum(
        budget.try_reserve(f"merchant {number % 50}", 1024 * 1024) for number in range(1000)
    )
    assert reserved_count == 14
    assert budget.reserved_bytes <= BUDGET_BYTES
