"""Actions of traffic control: a plan of the effect to confirm, and the execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from gateway.auth.key_rows import KeyNotFound, load_listed_keys
from gateway.console.dependencies import ConsoleDependencies
from gateway.operator.brownout_windows import (
    USAGE_PERIOD,
    InvalidWindow,
    create_window,
    describe_window_scope,
    describe_window_state,
    expand_operation_names,
    load_usage_affected_by_windows,
    resolve_window_key,
)
from gateway.operator.freezes import UnknownMerchant, resolve_freeze_scope
from gateway.operator.key_usage import group_usage_by_key
from gateway.operator.mode_switches import (
    ModeSwitchRefused,
    SwitchScope,
    check_legacy_base_url_is_set,
    describe_mode,
    describe_translation_effects,
    find_switch_scopes,
    switch_mode,
)
from gateway.storage import Tenant
from gateway.storage.audit_log import describe_scope, is_tenant_in_scope
from gateway.storage.brownout_rows import Brownout, end_brownouts, insert_brownout, list_brownouts
from gateway.storage.freezes import freeze_writes, unfreeze_writes
from gateway.storage.mode_rows import GROUPS, MODES, TRANSLATE, Group, Mode
from gateway.storage.request_counts import load_usage_summaries

DURATION_MINUTES = (5, 15, 60, 240)

ENVIRONMENTS = ("live", "sandbox")

MAX_ROWS = 50
"""Affected keys that are shown."""

KEY_COLUMNS = {"merchant": "", "environment": "", "key": "", "requests in 7 days": "number"}

Fields = Mapping[str, str]


class ActionRefused(Exception):
    """The action is invalid or would change nothing. The message is one sentence."""


REFUSALS = (ActionRefused, InvalidWindow, KeyNotFound, ModeSwitchRefused, UnknownMerchant)
"""Raised by actions. The messages are shown on a page."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An action to confirm. ``fields`` are the form fields that execute it.

    ``columns`` has the class of each column of ``rows``, which are what the action affects.
    """

    title: str
    effects: Sequence[str]
    button: str
    fields: Fields
    columns: Mapping[str, str]
    rows: Sequence[Sequence[str]]
    is_disruptive: bool = False
    """Whether clients lose something that they could do before."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action. Both functions raise REFUSALS; ``execute`` returns the text for the log."""

    plan: Callable[[ConsoleDependencies, Fields], Awaitable[Plan]]
    execute: Callable[[ConsoleDependencies, Fields], Awaitable[str]]


EVERYTHING = "*"
"""Chosen in a form for every merchant, environment or operation; nothing is chosen at first."""


def _require_choice(fields: Fields, name: str) -> str:
    """Returns the chosen value, empty for everything. Raises ActionRefused without a choice."""
    if not (value := fields.get(name, "")):
        raise ActionRefused(f"Choose the {name}.")
    return "" if value == EVERYTHING else value


# Freezes


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


async def _parse_freeze_scope(dependencies: ConsoleDependencies, fields: Fields) -> Tenant:
    environment = _require_choice(fields, "environment")
    if environment not in ("", *ENVIRONMENTS):
        raise ActionRefused("There is no such environment.")
    merchant = _require_choice(fields, "merchant")
    return await resolve_freeze_scope(dependencies.store, merchant, environment)


async def _plan_freeze(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    scope = await _parse_freeze_scope(dependencies, fields)
    title = f"Freeze writes of {describe_scope(scope)}"
    return await _build_freeze_plan(dependencies, scope, "freeze", title, FREEZE_EFFECTS)


async def _plan_unfreeze(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    scope = await _parse_freeze_scope(dependencies, fields)
    title = f"End the freeze of {describe_scope(scope)}"
    return await _build_freeze_plan(dependencies, scope, "unfreeze", title, UNFREEZE_EFFECTS)


async def _build_freeze_plan(
    dependencies: ConsoleDependencies, scope: Tenant, name: str, title: str, effects: Sequence[str]
) -> Plan:
    rows = await _load_affected_key_rows(
        dependencies, lambda owner, _key: is_tenant_in_scope(scope, owner)
    )
    fields = {part: value or EVERYTHING for part, value in scope._asdict().items()}
    fields |= {"do": name}
    is_disruptive = name == "freeze"
    return Plan(title, effects, name.title(), fields, KEY_COLUMNS, rows, is_disruptive)


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


async def _execute_freeze(dependencies: ConsoleDependencies, fields: Fields) -> str:
    scope = await _parse_freeze_scope(dependencies, fields)
    # Between the plan and the confirmation another operator may have done the same.
    if not await freeze_writes(dependencies.store, scope):
        raise ActionRefused("Nothing changed: writes were already frozen.")
    return f"froze {describe_scope(scope)}"


async def _execute_unfreeze(dependencies: ConsoleDependencies, fields: Fields) -> str:
    scope = await _parse_freeze_scope(dependencies, fields)
    if not await unfreeze_writes(dependencies.store, scope):
        raise ActionRefused("Nothing changed: writes were not frozen.")
    return f"unfroze {describe_scope(scope)}"


# Modes


async def _parse_mode_switch_fields(
    dependencies: ConsoleDependencies, fields: Fields
) -> tuple[list[SwitchScope], tuple[Group, ...], Mode]:
    # Selected from the known ones instead of cast: a client can send anything.
    mode = next((choice for choice in MODES if choice == fields.get("mode")), None)
    groups = (
        GROUPS
        if fields.get("group", "") == ""
        else tuple(choice for choice in GROUPS if choice == fields["group"])
    )
    if mode is None or not groups:
        raise ActionRefused("Choose a valid mode and group of operations.")
    key, merchant = fields.get("key", ""), fields.get("merchant", "")
    if not key and not merchant:
        raise ActionRefused("Choose a key or a merchant.")
    keys = [
        listed.name
        for listed in await load_listed_keys(dependencies.store)
        if merchant in ("", listed.merchant)
    ]
    # Unlike in commands, a prefix of a key is not enough.
    if not keys or (key and key not in keys):
        raise ActionRefused("There is no such merchant, or it has no such key.")
    store = dependencies.store
    targets = await find_switch_scopes(store, key or None, None if key else merchant, None)
    # Translating needs no legacy service: it may be the one that was switched off.
    if mode != TRANSLATE:
        check_legacy_base_url_is_set(dependencies.settings, targets)
    return targets, groups, mode


async def _plan_mode_switch(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    targets, groups, mode = await _parse_mode_switch_fields(dependencies, fields)
    effects = [
        f"{', '.join(groups)} of {'; '.join(target.description for target in targets)}: "
        + describe_mode(mode, dependencies.settings),
        "Running gateways apply it within a second. Requests in progress are finished where they began.",
    ]
    if any(not target.key for target in targets):
        effects.append("Keys of the merchant that had their own mode get this one.")
    if mode == TRANSLATE:
        effects += await describe_translation_effects(dependencies.store, targets, groups)
    rows = await _load_affected_key_rows(
        dependencies,
        lambda owner, key: any(
            owner == target.owner and target.key in ("", key) for target in targets
        ),
    )
    return Plan(
        f"Switch to {mode}",
        effects,
        f"Switch to {mode}",
        {name: fields.get(name, "") for name in ("do", "merchant", "key", "group", "mode")},
        KEY_COLUMNS,
        rows,
    )


async def _execute_mode_switch(dependencies: ConsoleDependencies, fields: Fields) -> str:
    targets, groups, mode = await _parse_mode_switch_fields(dependencies, fields)
    await switch_mode(dependencies.store, targets, groups, mode)
    return f"switched to {mode}: {', '.join(groups)} of {'; '.join(target.description for target in targets)}"


# Brownouts


REFUSING_EFFECT = (
    "For {minutes} minutes from your confirmation on, every running gateway answers these requests "
    "with 403 and a message that says until when."
)
COUNTING_EFFECT = (
    "No request is refused. For {minutes} minutes, requests that would have been are counted."
)


async def _parse_brownout_window(dependencies: ConsoleDependencies, fields: Fields) -> Brownout:
    minutes = next(
        (choice for choice in DURATION_MINUTES if str(choice) == fields.get("minutes")), None
    )
    if minutes is None:
        raise ActionRefused("Choose a duration.")
    merchant, key, operation = (
        _require_choice(fields, name) for name in ("merchant", "key", "operation")
    )
    keys = await load_listed_keys(dependencies.store)
    # The window begins with the confirmation: executing calls this function again.
    now = dependencies.store.clock()
    operations = expand_operation_names([operation] if operation else [])
    refuses = not fields.get("counts")
    until = now + timedelta(minutes=minutes)
    window = create_window(now, (now, until), merchant, key, operations, refuses=refuses)
    return resolve_window_key(window, keys)


async def _plan_brownout_start(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    window = await _parse_brownout_window(dependencies, fields)
    minutes = fields["minutes"]
    effects = [
        REFUSING_EFFECT.format(minutes=minutes)
        if window.refuses
        else COUNTING_EFFECT.format(minutes=minutes),
        f"Scope: {describe_window_scope(window)}. Nothing changes at the service.",
    ]
    users = sorted(
        await load_usage_affected_by_windows(dependencies.store, window),
        key=lambda user: -user.requests,
    )
    rows = [
        [user.merchant, user.environment, user.key, user.operation, f"{user.requests:,}"]
        for user in users
    ]
    names = ("do", "minutes", "merchant", "key", "operation", "counts")
    return Plan(
        "Start a brownout" if window.refuses else "Start a dry-run brownout",
        effects,
        "Start",
        {name: fields.get(name, "") for name in names},
        {
            **dict.fromkeys(("merchant", "environment", "key", "operation"), ""),
            "requests in 7 days": "number",
        },
        rows,
        window.refuses,
    )


async def _execute_brownout_start(dependencies: ConsoleDependencies, fields: Fields) -> str:
    window = await _parse_brownout_window(dependencies, fields)
    await insert_brownout(dependencies.store, window)
    effect = "refuses" if window.refuses else "only counts"
    return f"began brownout {window.id} until {window.ends_at:%Y-%m-%dT%H:%M:%SZ}, {effect}: {describe_window_scope(window)}"


async def _plan_brownout_end(dependencies: ConsoleDependencies, fields: Fields) -> Plan:
    now, id_ = dependencies.store.clock(), fields.get("id", "")
    open_windows = [
        window
        for window in await list_brownouts(dependencies.store)
        if id_ in ("", window.id) and describe_window_state(window, now) in ("under way", "to come")
    ]
    if not open_windows:
        raise ActionRefused("It has ended or was already switched off.")
    return Plan(
        "Switch the brownout off" if id_ else "Switch every brownout off",
        ["Running gateways answer these requests again within a second."],
        "Switch off",
        {"do": "brownout-off", "id": id_},
        dict.fromkeys(("brownout", "scope", "state", "until"), ""),
        [
            [
                window.id,
                describe_window_scope(window),
                describe_window_state(window, now),
                f"{window.ends_at:%Y-%m-%d %H:%M}",
            ]
            for window in open_windows
        ],
    )


async def _execute_brownout_end(dependencies: ConsoleDependencies, fields: Fields) -> str:
    id_ = fields.get("id", "")
    if not await end_brownouts(dependencies.store, dependencies.store.clock(), id_ or None):
        raise ActionRefused("It has ended or was already switched off.")
    return f"switched off brownout {id_}" if id_ else "switched off every brownout"


# Executing parses the fields again, because keys may have changed since the plan was shown.
ACTIONS: Mapping[str, Action] = {
    "freeze": Action(_plan_freeze, _execute_freeze),
    "unfreeze": Action(_plan_unfreeze, _execute_unfreeze),
    "mode": Action(_plan_mode_switch, _execute_mode_switch),
    "brownout": Action(_plan_brownout_start, _execute_brownout_start),
    "brownout-off": Action(_plan_brownout_end, _execute_brownout_end),
}
