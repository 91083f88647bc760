"""Modes as an operator handles them: whose a switch is, what it means, and what was switched."""

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
        "their requests become signed calls of the current service. Batches that were begun at the "
        "legacy service stay there, and so does what is asked about them."
    ),
    FORWARD: (
        "their requests go to the legacy service as they came, with the clients' own API keys, and "
        "its answers come back. Batches that were made through the current service stay there."
    ),
    COMPARE: (
        "their requests are answered by the {answers} service (`comparing.answers`). Once a client has "
        "the answer to a read, the other service is asked the same, and where the two differ is "
        "counted; see `compare report`. It counts towards the key's limit at the legacy service."
    ),
}


class NotSwitched(Exception):
    """Why nothing can be switched as it was asked; one line."""


@dataclass(frozen=True, slots=True)
class Whose:
    """The keys that a switch is for; an empty ``key`` is every one of the owner."""

    owner: Tenant
    key: str

    @property
    def told(self) -> str:
        return f"{self.owner}, " + (f"key {self.key}" if self.key else "every key")


def describe_mode(mode: Mode, settings: Settings) -> str:
    """What becomes of requests that are switched to a mode, in words that go on after a colon."""
    return MEANS[mode].format(answers=settings.comparing.answers)


async def find_switch_owners(
    store: Store, key: str | None, merchant: str | None, environment: str | None
) -> list[Whose]:
    """Whose a switch is, of one key or of a merchant's; raises NotSwitched."""
    keys = [one for one in await load_listed_keys(store) if environment in (None, one.environment)]
    return [_key(keys, key)] if key else list(_owners(keys, merchant))


async def count_legacy_batches(store: Store, those: Iterable[Whose]) -> int:
    """How many batches of theirs are at the legacy service, and stay there."""
    ledger = Ledger(store)
    return sum([len(await ledger.recall_all(one.owner, BEGUN)) for one in those])


def _key(keys: list[ListedKey], named: str) -> Whose:
    found = find_matching_keys(keys, named)
    if len(found) != 1:
        what = "several keys" if found else "no key"
        raise NotSwitched(f"--key means {what}; `keys list` shows their names")
    return Whose(found[0].owner, found[0].name)


def _owners(keys: list[ListedKey], merchant: str | None) -> Iterator[Whose]:
    owners = sorted({one.owner for one in keys if one.merchant == merchant})
    if not owners:
        raise NotSwitched("there is no merchant of this name; `keys list` shows what there is")
    for owner in owners:
        yield Whose(owner, "")


def check_legacy_address(settings: Settings, those: list[Whose]) -> None:
    configured = settings.environments.configured()
    for one in those:
        name = one.owner.environment
        if name not in configured or not configured[name].legacy_base_url:
            raise NotSwitched(
                f"environments.{name}.legacy_base_url is not set, so nobody can be asked there; set "
                "it, restart the gateway, and switch then"
            )


async def switch_mode(
    store: Store, those: Iterable[Whose], groups: Sequence[Group], mode: Mode
) -> list[str]:
    """The names of keys that had a mode of their own, and have it no more."""
    displaced: list[str] = []
    for one in those:
        displaced += await set_mode(store, one.owner, one.key, groups, mode)
    return displaced


@dataclass(frozen=True, slots=True)
class Standing:
    """``begun`` counts the batches of each owner that are at the legacy service."""

    switches: list[Switch]
    acts: list[AuditEvent]
    begun: dict[Tenant, int]


async def load_switch_status(store: Store) -> Standing:
    switches, ledger = await all_switches(store), Ledger(store)
    owners = dict.fromkeys(one.owner for one in switches)
    counts = {owner: len(await ledger.recall_all(owner, BEGUN)) for owner in owners}
    acts = [one for one in await acts_of(store) if one.what.startswith(SWITCHED)]
    return Standing(switches, acts, {owner: count for owner, count in counts.items() if count})
