"""Creates brownout windows, estimates whom they affect, and describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from gateway.auth.key_rows import ListedKey, find_matching_keys
from gateway.storage import Store
from gateway.storage.brownout_rows import Brownout, new_brownout
from gateway.storage.usage_rows import Used, used_since
from mappings import OPERATIONS, UNLISTED

LOOKS_BACK = timedelta(days=7)


class NoWindow(Exception):
    """A window cannot be created. The message is one line that starts with the option at fault."""


def expand_operation_names(words: Iterable[str]) -> tuple[str, ...]:
    """Operation names, with each group replaced by its operations. Raises InvalidWindow."""
    rooms = group_operation_names()
    every = {one.name for one in (*OPERATIONS, *UNLISTED)}
    found: dict[str, None] = {}
    for word in words:
        names = rooms.get(word) or [name for name in every if name == word]
        if not names:
            raise NoWindow(f"operation {word}: not an operation, nor a group: {', '.join(rooms)}")
        found |= dict.fromkeys(names)
    return tuple(found)


def group_operation_names() -> dict[str, list[str]]:
    """Operation names by group, which is the flow's module."""
    rooms: dict[str, list[str]] = {}
    for one in (*OPERATIONS, *UNLISTED):
        rooms.setdefault(one.flow.__module__.rpartition(".")[2], []).append(one.name)
    return rooms


def create_window(
    now: datetime,
    span: tuple[datetime, datetime],
    merchant: str,
    key: str,
    operations: tuple[str, ...],
    *,
    refuses: bool,
) -> Brownout:
    """Creates a window that has not ended; raises InvalidWindow.

    ``resolve_window_key`` checks merchant and key.
    """
    begins_at, ends_at = span
    # Also in the past: it would never take effect, and nobody would notice.
    if ends_at <= max(begins_at, now):
        raise NoWindow("until: the window would end before it starts")
    return new_brownout(
        begins_at=begins_at,
        ends_at=ends_at,
        merchant=merchant,
        key=key,
        operations=operations,
        refuses=refuses,
    )


def resolve_window_key(one: Brownout, known: Iterable[ListedKey]) -> Brownout:
    """The window with the key's full name. Raises InvalidWindow if no key matches: it would affect
    no request.
    """
    theirs = [key for key in known if one.merchant in ("", key.merchant)]
    if one.merchant and not theirs:
        raise NoWindow("merchant: no merchant has this name; `keys list` shows the merchants")
    # By name, because one name may be used in both environments.
    names = {key.name for key in find_matching_keys(theirs, one.key)} if one.key else {""}
    if len(names) != 1:
        what = "several keys" if names else "no key"
        raise NoWindow(f"key: matches {what}; `keys list` shows the names")
    return replace(one, key=names.pop())


async def load_window_users(store: Store, *those: Brownout) -> list[Used]:
    """Usage of the last seven days that the windows would affect. Raises StoreUnavailable."""
    used = await used_since(store, (store.clock() - LOOKS_BACK).date())
    return [each for each in used if any(_would_hit(one, each) for one in those)]


def _would_hit(one: Brownout, used: Used) -> bool:
    return bool(used.key) and one.meets(used.merchant, used.key, used.operation, one.begins_at)


def describe_window_scope(one: Brownout) -> str:
    """The merchant, key and operations that a window affects."""
    return ", ".join(filter(None, (one.merchant, one.key, *one.operations))) or "everything"


def describe_window_state(one: Brownout, now: datetime) -> str:
    if one.ended:
        return "switched off"
    if now >= one.ends_at:
        return "over"
    return "under way" if now >= one.begins_at else "to come"
