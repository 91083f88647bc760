"""Resolves the scope of a mode switch, describes modes, and lists switches."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.auth.key_rows import find_single_key, load_listed_keys
from gateway.config.settings import Settings
from gateway.observability.plurals import join_names
from gateway.operator import UNKNOWN_TENANT, ActionRefused
from gateway.storage import ObjectStateStore, Store, Tenant
from gateway.storage.id_rows import load_current_ids_by_legacy_id
from gateway.storage.mode_rows import (
    COMPARE,
    FORWARD,
    GROUPS,
    TRANSLATE,
    Group,
    Mode,
    ModeSwitch,
    list_mode_switches,
    set_mode,
)
from gateway.upstream.service_problems import REFUSAL, Refusal, describe_refusals
from mappings.forwarded_writes import ROUTING_KIND

MODE_DESCRIPTIONS = {
    TRANSLATE: (
        "Requests become signed calls to the current service. Batches that the legacy service "
        "created stay there, with all requests about them."
    ),
    FORWARD: (
        "Requests are passed unchanged to the legacy service, with the client's own API key. "
        "Batches that were created through the current service stay there."
    ),
    COMPARE: (
        "Requests are answered by the {answers} service (`comparing.answers`). After a read is "
        "answered, it is also sent to the other service, and differences are counted; see `compare "
        "report`. These reads count towards the key's rate limit at the legacy service."
    ),
}


IMPORT_RECORD = "cutover", "import"
"""Kind and id of the record that a tenant was imported."""

MISSING_IMPORT = (
    "Nothing is imported of {tenant}: ids that its clients have stored may be answered 404, and "
    "statuses and payout holds of recipients and payments of earlier batches are missing. Run "
    "`payout-gateway cutover import` first."
)

MISSING_BATCHES = (
    "Batches of {tenant} that the legacy service has created and no import has read: {count}. `GET "
    "/v1/payments` leaves out their payments. Run `payout-gateway cutover import` again."
)


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """A switch to confirm, and its effects in sentences. An empty ``key`` means every key."""

    mode: Mode
    groups: Sequence[Group]
    tenants: Sequence[Tenant]
    key: str
    effects: Sequence[str]

    @property
    def subject(self) -> str:
        operations = "all operations" if len(self.groups) == len(GROUPS) else ", ".join(self.groups)
        key = f"key {self.key}" if self.key else "every key"
        return f"{operations} of {'; '.join(f'{tenant}, {key}' for tenant in self.tenants)}"

    async def execute(self, store: Store) -> list[str]:
        """Switches the keys. Returns the names of keys whose own mode was replaced."""
        replaced_keys: list[str] = []
        for tenant in self.tenants:
            replaced_keys += await set_mode(store, tenant, self.key, self.groups, self.mode)
        return replaced_keys


async def plan_switch(
    store: Store,
    settings: Settings,
    mode: Mode,
    groups: Sequence[Group],
    *,
    key: str | None = None,
    merchant: str | None = None,
    environment: str | None = None,
) -> SwitchPlan:
    """Plans a switch of one key or, without it, of a merchant.

    Raises OperatorError.
    """
    listed_keys = await load_listed_keys(store)
    if key is None:
        name, keys = "", [each for each in listed_keys if environment in (None, each.environment)]
        tenants = sorted({api_key.tenant for api_key in keys if api_key.merchant == merchant})
    else:
        found = find_single_key(listed_keys, key)
        if environment not in (None, found.environment):
            raise ActionRefused(f"{found.name} is a key of the {found.environment} environment")
        name, tenants = found.name, [found.tenant]
    if not tenants:
        raise ActionRefused(UNKNOWN_TENANT)
    effects = [MODE_DESCRIPTIONS[mode].format(answers=settings.comparing.answers)]
    if mode == TRANSLATE:
        effects += await _describe_translation_effects(store, tenants, groups)
    # Translating needs no legacy service: it may be the one that was switched off.
    else:
        urls = settings.environments.map_legacy_base_urls_by_environment()
        for name in (each.environment for each in tenants if each.environment not in urls):
            # Running gateways would accept the switch and answer 500 to every request of the key.
            raise ActionRefused(
                f"environments.{name}.legacy_base_url is not set, so the gateway cannot reach the "
                "legacy service; set it, restart the gateway, then switch"
            )
    return SwitchPlan(mode, groups, tenants, name, effects)


async def _describe_translation_effects(
    store: Store, tenants: Sequence[Tenant], groups: Sequence[Group]
) -> list[str]:
    """Says what would stay at the legacy service if these tenants were translated now, and what
    clients would miss because it is not imported.

    Empty for tenants whose requests the legacy service never answered.
    """
    ledger = ObjectStateStore(store)
    batches = {tenant: [*await ledger.load_facts_by_id(tenant, ROUTING_KIND)] for tenant in tenants}
    forwarded = {
        switch.tenant for switch in await list_mode_switches(store) if switch.mode != TRANSLATE
    }
    texts = []
    if any(batches.values()) and "batches" in groups:
        texts = [f"Batches that stay at the legacy service: {sum(map(len, batches.values()))}."]
    for tenant, legacy_ids in batches.items():
        if tenant in forwarded and not await ledger.load(tenant, *IMPORT_RECORD):
            texts.append(MISSING_IMPORT.format(tenant=tenant))
            continue
        current_ids = await load_current_ids_by_legacy_id(store, tenant, legacy_ids)
        ids = [current_ids.get(id_, id_) for id_ in legacy_ids]
        facts_by_id = await ledger.load_facts_by_id(tenant, "batch", ids)
        if count := sum(not facts_by_id.get(id_) for id_ in ids):
            texts.append(MISSING_BATCHES.format(tenant=tenant, count=count))
    return texts


async def load_switches_and_batch_counts(
    store: Store,
) -> tuple[list[ModeSwitch], dict[Tenant, int]]:
    """Loads the switches, and the number of batches at the legacy service, by tenant."""
    switches, ledger = await list_mode_switches(store), ObjectStateStore(store)
    counts = {
        tenant: len(batches)
        for tenant in dict.fromkeys(switch.tenant for switch in switches)
        if (batches := await ledger.load_facts_by_id(tenant, ROUTING_KIND))
    }
    return switches, counts


async def list_switched_keys(
    store: Store, modes: Collection[str] = (FORWARD, COMPARE)
) -> dict[str, set[str]]:
    """Lists the keys in these modes by environment, for operators; raises StoreUnavailable."""
    keys = defaultdict(set)
    for switch in await list_mode_switches(store):
        if switch.mode in modes:
            name = f"key {switch.key}" if switch.key else "every key"
            keys[switch.tenant.environment].add(f"{name} of {switch.tenant.merchant}")
    return dict(keys)


def name_affected_clients(
    faults: Mapping[str, str],
    refusals: Collection[tuple[str, Refusal]],
    switched_keys: Mapping[str, set[str]],
) -> dict[str, str]:
    """Returns the faults of `/readyz`, which names nobody, with the clients that they affect.

    ``refusals`` and ``switched_keys`` are with, or by, their environment.
    """
    named = dict(faults)
    for name, fault in faults.items():
        kind, _, environment = name.partition(".")
        refused = [refusal for place, refusal in refusals if place == environment]
        if kind == "service" and fault.startswith(REFUSAL) and refused:
            named[name] = describe_refusals(refused)
        elif kind == "legacy" and environment in switched_keys:
            named[name] = f"{fault} ({join_names(switched_keys[environment])})"
    return named
