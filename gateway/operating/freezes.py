"""Freezes as an operator handles them: what may be stopped, and what is."""

from __future__ import annotations

from gateway.store import Owner, Store
from gateway.store.acts import Act, acts_of
from gateway.store.freezing import FROZE, UNFROZE, Freeze, frozen
from gateway.store.key_rows import owners_of_pairs


class NoMerchant(Exception):
    """Nobody has this name; one line."""


async def scope_of(store: Store, merchant: str, environment: str) -> Owner:
    """Empty is every one. Raises NoMerchant: a freeze of nobody would only look like one."""
    known = {owner.merchant for owner in await owners_of_pairs(store)}
    if merchant and merchant not in known:
        raise NoMerchant("there is no merchant of this name; `keys list` shows what there is")
    return Owner(merchant, environment)


async def standing(store: Store) -> tuple[list[Freeze], list[Act]]:
    """What is frozen, and who froze and unfroze what; StoreUnavailable."""
    acts = [act for act in await acts_of(store) if act.what in (FROZE, UNFROZE)]
    return await frozen(store), acts
