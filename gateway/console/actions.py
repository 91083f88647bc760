"""Actions of traffic control: each is planned from a form, shown, and carried out if confirmed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from gateway.auth.key_rows import KeyNotFound, load_listed_keys
from gateway.console.dependencies import ConsoleDependencies
from gateway.operator import ActionRefused
from gateway.operator.interruptions import (
    USAGE_PERIOD,
    InvalidWindow,
    create_window,
    describe_window_scope,
    describe_window_state,
    expand_operation_names,
    load_usage_affected_by_window,
    resolve_freeze_scope,
    resolve_window_key,
)
from gateway.operator.mode_switches import plan_switch
from gateway.operator.usage import group_usage_by_key
from gateway.storage import Tenant
from gateway.storage.audit_log import describe_scope, is_tenant_in_scope
from gateway.storage.brownout_rows import end_brownouts, insert_brownout, list_brownouts
from gateway.storage.freezes import freeze_writes, unfreeze_writes
from gateway.storage.mode_rows import GROUPS, MODES
from gateway.storage.request_counts import load_usage_summaries

DURATION_MINUTES = (5, 15, 60, 240)

ENVIRONMENTS = ("live", "sandbox")

KEY_COLUMNS = {"merchant": "", "environment": "", "key": "", "requests in 7 days": "number"}
USAGE_COLUMNS = {"merchant": "", "environment": "", "key": "", "operation": ""} | {
    "requests in 7 days": "number"
}
BROWNOUT_COLUMNS = dict.fromkeys(("brownout", "scope", "state", "until"), "")

FREEZE_EFFECTS = (
    (
        "From your confirmation on, every running gateway answers writes (creates, changes, "
        "deletions and starts) with 500, a message that says so, and Retry-After."
    ),
    "Reads continue. Writes in progress that take several calls are finished, except starts.",
)
UNFREEZE_EFFECTS = (
    "Writes are accepted again immediately.",
    "Only this freeze ends: merchants that another freeze covers stay frozen.",
)
REFUSING_EFFECT = (
    "For {minutes} minutes from your confirmation on, every running gateway answers these requests "
    "with 403 and a message that says until when."
)

Fields = Mapping[str, str]


REFUSALS = (ActionRefused, InvalidWindow, KeyNotFound)
"""Raised by actions. The messages are shown on a page."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An action to confirm.

    ``columns`` has the class of each column of ``rows``, which are what the action affects.
    ``execute`` returns False or 0 if another operator has done the same meanwhile.
    """

    title: str
    effects: Sequence[str]
    button: str
    columns: Mapping[str, str]
    rows: Sequence[Sequence[str]]
    execute: Callable[[], Awaitable[object]]
    is_disruptive: bool = False
    """Whether clients lose something that they could do before."""


EVERYTHING = "*"
"""Chosen in a form for every merchant, environment or operation; nothing is chosen at first."""


def _require_choice(fields: Fields, name: str) -> str:
    """Returns the chosen value, empty for everything. Raises ActionRefused without a choice."""
    if not (value := fields.get(name, "")):
        raise ActionRefused(f"Choose the {name}.")
    return "" if value == EVERYTHING else value


async def _load_affected_key_rows(
    dependencies: ConsoleDependencies, is_affected: Callable[[Tenant, str], bool]
) -> list[list[str]]:
    """Lists the affected keys, the most used first."""
    since = (dependencies.store.clock() - USAGE_PERIOD).date()
    requests_by_key = {
        (usage.owner, usage.key): usage.requests
        for usage in group_usage_by_key(await load_usage_summaries(dependencies.store, since))
    }
    keys = sorted(
        (-requests_by_key.get((key.tenant, key.name), 0), key.tenant, key.name)
        for key in await load_listed_keys(dependencies.store)
        if key.revoked_at is None and is_affected(key.tenant, key.name)
    )
    return [[*owner, name, f"{-requests:,}"] for requests, owner, name in keys]


async def _plan_freeze(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    store = dependencies.store
    environment = _require_choice(fields, "environment")
    if environment not in ("", *ENVIRONMENTS):
        raise ActionRefused("There is no such environment.")
    scope = await resolve_freeze_scope(store, _require_choice(fields, "merchant"), environment)
    is_freeze = fields["do"] == "freeze"
    change = freeze_writes if is_freeze else unfreeze_writes
    return Plan(
        f"{'Freeze writes' if is_freeze else 'End the freeze'} of {describe_scope(scope)}",
        FREEZE_EFFECTS if is_freeze else UNFREEZE_EFFECTS,
        fields["do"].title(),
        KEY_COLUMNS,
        await _load_affected_key_rows(
            dependencies, lambda owner, _key: is_tenant_in_scope(scope, owner)
        ),
        lambda: change(store, scope),
        is_freeze,
    )


async def _plan_mode_switch(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    store = dependencies.store
    # Selected from the known ones instead of cast: a client can send anything.
    mode = next((choice for choice in MODES if choice == fields.get("mode")), None)
    groups = [choice for choice in GROUPS if fields.get("group", "") in ("", choice)]
    if mode is None or not groups:
        raise ActionRefused("Choose a valid mode and group of operations.")
    key, merchant = fields.get("key", ""), fields.get("merchant", "")
    if not key and not merchant:
        raise ActionRefused("Choose a key or a merchant.")
    listed_keys = await load_listed_keys(store)
    keys = [listed.name for listed in listed_keys if merchant in ("", listed.merchant)]
    # Unlike in commands, a prefix of a key is not enough.
    if not keys or (key and key not in keys):
        raise ActionRefused("There is no such merchant, or it has no such key.")
    chosen = {"key": key} if key else {"merchant": merchant}
    switch = await plan_switch(store, dependencies.settings, mode, groups, **chosen)
    effects = [
        *switch.effects,
        "Running gateways apply it within a second. Requests in progress are finished where they began.",
    ]
    if not key:
        effects.append("Keys of the merchant that had their own mode get this one.")
    rows = await _load_affected_key_rows(
        dependencies,
        lambda owner, name: any(
            owner == scope.owner and scope.key in ("", name) for scope in switch.scopes
        ),
    )
    return Plan(
        f"Switch {switch.subject} to {mode}",
        effects,
        f"Switch to {mode}",
        KEY_COLUMNS,
        rows,
        lambda: switch.execute(store),
    )


async def _plan_brownout_start(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    store, minutes = dependencies.store, fields.get("minutes", "")
    if minutes not in map(str, DURATION_MINUTES):
        raise ActionRefused("Choose a duration.")
    merchant, key, operation = (
        _require_choice(fields, name) for name in ("merchant", "key", "operation")
    )
    # The window begins with the confirmation, which plans the action again.
    now, operations = store.clock(), expand_operation_names([operation] if operation else [])
    period = now, now + timedelta(minutes=int(minutes))
    window = create_window(now, period, merchant, key, operations)
    window = resolve_window_key(window, await load_listed_keys(store))
    users = await load_usage_affected_by_window(store, window)
    return Plan(
        f"Start a brownout: {describe_window_scope(window)}",
        [REFUSING_EFFECT.format(minutes=minutes)],
        "Start",
        USAGE_COLUMNS,
        [
            [user.merchant, user.environment, user.key, user.operation, f"{user.requests:,}"]
            for user in sorted(users, key=lambda user: -user.requests)
        ],
        lambda: insert_brownout(store, window),
        is_disruptive=True,
    )


async def _plan_brownout_end(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    store, now, id_ = dependencies.store, dependencies.store.clock(), fields.get("id", "")
    windows = [
        (window, describe_window_state(window, now))
        for window in await list_brownouts(store)
        if id_ in ("", window.id)
    ]
    rows = [
        [window.id, describe_window_scope(window), state, f"{window.ends_at:%Y-%m-%d %H:%M}"]
        for window, state in windows
        if state in ("under way", "to come")
    ]
    if not rows:
        raise ActionRefused("It has ended or was already switched off.")
    return Plan(
        f"Switch brownout {id_} off" if id_ else "Switch every brownout off",
        ["Running gateways answer these requests again within a second."],
        "Switch off",
        BROWNOUT_COLUMNS,
        rows,
        lambda: end_brownouts(store, store.clock(), id_ or None),
    )


ACTIONS: Mapping[str, Callable[[ConsoleDependencies, Fields], Awaitable[Plan]]] = {
    "freeze": _plan_freeze,
    "unfreeze": _plan_freeze,
    "mode": _plan_mode_switch,
    "brownout": _plan_brownout_start,
    "brownout-off": _plan_brownout_end,
}
"""Plans of the actions. A confirmed action is planned again, because keys may have changed."""


async def plan_action(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    """Plans the action of a form; raises REFUSALS."""
    if (plan := ACTIONS.get(fields.get("do", ""))) is None:
        raise ActionRefused("There is no such action.")
    return await plan(dependencies, fields)


async def execute_action(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    """Plans an action again and carries it out; raises REFUSALS."""
    plan = await plan_action(dependencies, fields)
    if await plan.execute() == 0:
        raise ActionRefused("Nothing changed: it is so already.")
    return plan
