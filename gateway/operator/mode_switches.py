"""Resolves the scope of a mode switch, describes modes, and lists switches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.auth.key_rows import ListedKey, find_matching_keys, load_listed_keys
from gateway.config.settings import Settings
from gateway.storage import Ledger, Store, Tenant
from gateway.storage.audit_log import AuditEvent, acts_of
from gateway.storage.mode_rows import (
    COMPARE,
    FORWARD,
    SWITCHED,
    TRANSLATE,
    Group,
    Mode,
    Switch,
    all_switches,
    set_mode,
)
from gateway.writes.batch_routing import BEGUN

MEANS = {
    TRANSLATE: (
        "requests become signed calls to the current service. Batches that the legacy service "
        "created "
        "stay there, with all requests about them."
    ),
    FORWARD: (
        "requests are passed unchanged to the legacy service, with the client's own API key. "
        "Batches "
        "that were created through the current service stay there."
    ),
    COMPARE: (
        "requests are answered by the {answers} service (`comparing.answers`). After a read is "
        "answered, it is also sent to the other service, and differences are counted; see `compare "
        "report`. These reads count towards the key's rate limit at the legacy service."
    ),
}


class NotSwitched(Exception):
    """A switch cannot be made. The message is one line."""


@dataclass(frozen=True, slots=True)
class Whose:
    """The scope of a switch. An empty ``key`` means every key of the tenant."""

    owner: Tenant
    key: str

    @property
    def told(self) -> str:
        return f"{self.owner}, " + (f"key {self.key}" if self.key else "every key")


def describe_mode(mode: Mode, settings: Settings) -> str:
    """Describes what a mode does; the text continues a sentence after a colon."""
    return MEANS[mode].format(answers=settings.comparing.answers)


async def find_switch_owners(
    store: Store, key: str | None, merchant: str | None, environment: str | None
) -> list[Whose]:
    """The scopes of a switch of one key or of a merchant. Raises ModeSwitchRefused."""
    keys = [one for one in await load_listed_keys(store) if environment in (None, one.environment)]
    return [_key(keys, key)] if key else list(_owners(keys, merchant))


async def count_legacy_batches(store: Store, those: Iterable[Whose]) -> int:
    """The number of batches of these tenants that stay at the legacy service."""
    ledger = Ledger(store)
    return sum([len(await ledger.recall_all(one.owner, BEGUN)) for one in those])


def _key(keys: list[ListedKey], named: str) -> Whose:
    found = find_matching_keys(keys, named)
    # A prefix that matches two keys must not switch one of them.
    if len(found) != 1:
        what = "several keys" if found else "no key"
        raise NotSwitched(f"--key matches {what}; `keys list` shows the names")
    return Whose(found[0].owner, found[0].name)


def _owners(keys: list[ListedKey], merchant: str | None) -> Iterator[Whose]:
    owners = sorted({one.owner for one in keys if one.merchant == merchant})
    if not owners:
        raise NotSwitched("no merchant has this name; `keys list` shows the merchants")
    for owner in owners:
        yield Whose(owner, "")


def check_legacy_address(settings: Settings, those: list[Whose]) -> None:
    configured = settings.environments.configured()
    for one in those:
        name = one.owner.environment
        if name not in configured or not configured[name].legacy_base_url:
            raise NotSwitched(
                f"environments.{name}.legacy_base_url is not set, so the gateway cannot reach the "
                "legacy "
                "service; set it, restart the gateway, then switch"
            )


async def switch_mode(
    store: Store, those: Iterable[Whose], groups: Sequence[Group], mode: Mode
) -> list[str]:
    """Switches the scopes. Returns the names of keys whose own mode was replaced."""
    displaced: list[str] = []
    for one in those:
        displaced += await set_mode(store, one.owner, one.key, groups, mode)
    return displaced


@dataclass(frozen=True, slots=True)
class Standing:
    """``begun``: the number of batches at the legacy service, by tenant."""

    switches: list[Switch]
    acts: list[AuditEvent]
    begun: dict[Tenant, int]


async def load_switch_status(store: Store) -> Standing:
    switches, ledger = await all_switches(store), Ledger(store)
    owners = dict.fromkeys(one.owner for one in switches)
    counts = {owner: len(await ledger.recall_all(owner, BEGUN)) for owner in owners}
    acts = [one for one in await acts_of(store) if one.what.startswith(SWITCHED)]
    return Standing(switches, acts, {owner: count for owner, count in counts.items() if count})
