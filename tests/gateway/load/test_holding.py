"""The memory budget for bodies: bounded in total and per merchant."""

from __future__ import annotations

from gateway.admission.load.memory_budget import SMALL, MemoryBudget

MOST = 16 * 1024 * 1024


def test_a_merchant_holds_at_most_half() -> None:
    held = MemoryBudget(MOST)
    assert held.take("a", MOST // 2)
    assert not held.take("a", 1)
    assert held.take("b", 1)


def test_the_last_eighth_is_for_small_bodies() -> None:
    held = MemoryBudget(MOST)
    assert held.take("a", MOST // 2)
    assert held.take("b", MOST // 2 - MOST // 8)
    assert not held.take("c", SMALL + 1)
    assert held.take("c", SMALL)


def test_a_body_that_grows_large_is_no_small_one_by_parts() -> None:
    held = MemoryBudget(MOST)
    held.take("a", MOST // 2)
    held.take("b", MOST // 2 - MOST // 8)
    assert held.take("c", SMALL)
    assert not held.take("c", 1, has=SMALL)


def test_what_is_given_back_is_free_again() -> None:
    held = MemoryBudget(MOST)
    held.take("a", MOST // 2)
    held.give_back("a", MOST // 2)
    assert held.total == 0
    assert held.take("a", MOST // 2)


def test_a_thousand_large_bodies_are_held_to_the_bound() -> None:
    held = MemoryBudget(MOST)
    taken = sum(held.take(f"merchant {number % 50}", 1024 * 1024) for number in range(1000))
    assert taken == 14
    assert held.total <= MOST
