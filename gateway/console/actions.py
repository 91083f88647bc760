"""Actions of traffic control: a plan of the effect to confirm, and the execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gateway.auth.key_rows import load_listed_keys
from gateway.console.dependencies import Parts
from gateway.operator.cutover_windows import (
    LOOKS_BACK,
    NoWindow,
    create_window,
    describe_window_scope,
    describe_window_state,
    expand_operation_names,
    load_window_users,
)
from gateway.operator.freezes import NoMerchant, resolve_freeze_scope
from gateway.operator.key_usage import group_usage_by_key
from gateway.operator.mode_switches import (
    NotSwitched,
    Whose,
    check_legacy_address,
    count_legacy_batches,
    describe_mode,
    find_switch_owners,
    switch_mode,
)
from gateway.storage import Tenant
from gateway.storage.audit_log import covers, told_scope
from gateway.storage.brownout_rows import Brownout, add_brownout, all_brownouts, end_brownouts
from gateway.storage.freezes import freeze, unfreeze
from gateway.storage.mode_rows import GROUPS, MODES, TRANSLATE, Group, Mode
from gateway.storage.usage_rows import used_since

MINUTES = (5, 15, 60, 240)

ENVIRONMENTS = ("live", "sandbox")

SHOWN = 50


class NotDone(Exception):
    """The action is invalid or would change nothing. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An action to confirm. ``fields`` are the form fields that execute it.

    ``rows`` are the affected keys; ``omitted_rows`` counts those that are not shown.
    """

    title: str
    says: Sequence[str]
    button: str
    fields: Mapping[str, str]
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    more: int = 0
    stops: bool = False
    """Whether clients lose something that they could do before."""


@dataclass(frozen=True, slots=True)
class Change:
    """An action. Both functions raise ActionRefused; ``execute`` returns the text for the log."""

    plan: Callable[[Parts, Mapping[str, str]], Awaitable[Plan]]
    do: Callable[[Parts, Mapping[str, str]], Awaitable[str]]


# Freezes


STOPS = (
    "From your confirmation on, every running gateway answers writes (creates, changes, deletions "
    "and starts) with 403 and a message that says so."
)


async def _scope(parts: Parts, fields: Mapping[str, str]) -> Tenant:
    environment = fields.get("environment", "")
    if environment not in ("", *ENVIRONMENTS):
        raise NotDone("There is no such environment.")
    try:
        return await resolve_freeze_scope(parts.store, fields.get("merchant", ""), environment)
    except NoMerchant as why:
        raise NotDone(_sentence(str(why))) from None


async def _plan_freeze(parts: Parts, fields: Mapping[str, str]) -> Plan:
    scope = await _scope(parts, fields)
    says = [
        STOPS,
        "Reads continue. Writes in progress that take several calls are finished, except starts.",
    ]
    title = f"Freeze writes of {told_scope(scope)}"
    return replace(await _of_scope(parts, scope, "freeze"), title=title, says=says, stops=True)


async def _plan_unfreeze(parts: Parts, fields: Mapping[str, str]) -> Plan:
    scope = await _scope(parts, fields)
    says = [
        "Writes are accepted again immediately.",
        "Only this freeze ends: merchants that another freeze covers stay frozen.",
    ]
    title = f"End the freeze of {told_scope(scope)}"
    return replace(await _of_scope(parts, scope, "unfreeze"), title=title, says=says)


async def _of_scope(parts: Parts, scope: Tenant, do: str) -> Plan:
    """The common part of the plans to freeze and unfreeze: the affected keys."""
    rows = await _users(parts, lambda owner, _key: covers(scope, owner))
    return Plan(
        "",
        (),
        do.title(),
        {"do": do, **scope._asdict()},
        ("merchant", "environment", "key", "requests in 7 days"),
        rows[:SHOWN],
        max(len(rows) - SHOWN, 0),
    )


async def _users(parts: Parts, concerns: Callable[[Tenant, str], bool]) -> list[list[str]]:
    """Lists the affected keys, the most used first."""
    since = (parts.store.clock() - LOOKS_BACK).date()
    used = {
        (one.owner, one.key): one.requests
        for one in group_usage_by_key(await used_since(parts.store, since))
    }
    keys = [
        (used.get((one.owner, one.name), 0), one.owner, one.name)
        for one in await load_listed_keys(parts.store)
        if one.revoked_at is None and concerns(one.owner, one.name)
    ]
    keys.sort(key=lambda one: (-one[0], one[1:]))
    return [[*owner, name, f"{requests:,}"] for requests, owner, name in keys]


async def _freeze(parts: Parts, fields: Mapping[str, str]) -> str:
    scope = await _scope(parts, fields)
    if not await freeze(parts.store, scope):
        raise NotDone("Nothing changed: writes were already frozen.")
    return f"froze {told_scope(scope)}"


async def _unfreeze(parts: Parts, fields: Mapping[str, str]) -> str:
    scope = await _scope(parts, fields)
    if not await unfreeze(parts.store, scope):
        raise NotDone("Nothing changed: writes were not frozen.")
    return f"unfroze {told_scope(scope)}"


async def _known(parts: Parts, merchant: str, key: str) -> None:
    """Checks that merchant and key exist. Unlike in commands, a prefix of a key is not enough."""
    keys = await load_listed_keys(parts.store)
    if merchant and merchant not in {one.merchant for one in keys}:
        raise NotDone("There is no such merchant.")
    if key and key not in {one.name for one in keys if merchant in ("", one.merchant)}:
        raise NotDone("There is no such key, or it belongs to another merchant.")


# Modes


async def _asked_mode(
    parts: Parts, fields: Mapping[str, str]
) -> tuple[list[Whose], tuple[Group, ...], Mode]:
    mode = next((one for one in MODES if one == fields.get("mode")), None)
    groups = (
        GROUPS
        if fields.get("group", "") == ""
        else tuple(one for one in GROUPS if one == fields["group"])
    )
    if mode is None or not groups:
        raise NotDone("Choose a valid mode and group of operations.")
    key, merchant = fields.get("key", ""), fields.get("merchant", "")
    try:
        await _known(parts, merchant, key)
        if key:
            those = await find_switch_owners(parts.store, key, None, None)
        else:
            those = await find_switch_owners(parts.store, None, merchant, None) if merchant else []
        if mode != TRANSLATE:
            check_legacy_address(parts.settings, those)
    except NotSwitched as why:
        raise NotDone(_sentence(str(why))) from None
    if not those:
        raise NotDone("Choose a key or a merchant.")
    return those, groups, mode


async def _plan_mode(parts: Parts, fields: Mapping[str, str]) -> Plan:
    those, groups, mode = await _asked_mode(parts, fields)
    says = [
        f"{', '.join(groups)} of {'; '.join(one.told for one in those)}: "
        + describe_mode(mode, parts.settings),
        "Running gateways apply it within a second. Requests in progress are finished where they began.",
    ]
    if any(not one.key for one in those):
        says.append("Keys of the merchant that had their own mode get this one.")
    if mode == TRANSLATE and (begun := await count_legacy_batches(parts.store, those)):
        says.append(f"Batches created at the legacy service, which stay there: {begun}.")
    rows = await _users(
        parts, lambda owner, key: any(owner == one.owner and one.key in ("", key) for one in those)
    )
    names = ("merchant", "key", "group", "mode")
    return Plan(
        f"Switch to {mode}",
        says,
        f"Switch to {mode}",
        {"do": "mode", **{name: fields.get(name, "") for name in names}},
        ("merchant", "environment", "key", "requests in 7 days"),
        rows[:SHOWN],
        max(len(rows) - SHOWN, 0),
    )


async def _mode(parts: Parts, fields: Mapping[str, str]) -> str:
    those, groups, mode = await _asked_mode(parts, fields)
    await switch_mode(parts.store, those, groups, mode)
    return f"switched to {mode}: {', '.join(groups)} of {'; '.join(one.told for one in those)}"


# Brownouts


REFUSES = (
    "For {minutes} minutes from your confirmation on, every running gateway answers these requests "
    "with 403 and a message that says until when."
)
COUNTS = "No request is refused. For {minutes} minutes, requests that would have been are counted."


async def _window(parts: Parts, fields: Mapping[str, str]) -> Brownout:
    minutes = next((one for one in MINUTES if str(one) == fields.get("minutes")), None)
    if minutes is None:
        raise NotDone("Choose a duration.")
    merchant, key, word = (fields.get(name, "") for name in ("merchant", "key", "operation"))
    await _known(parts, merchant, key)
    now = parts.store.clock()
    try:
        operations = expand_operation_names([word] if word else [])
        refuses = not fields.get("counts")
        until = now + timedelta(minutes=minutes)
        return create_window(now, (now, until), merchant, key, operations, refuses=refuses)
    except NoWindow as why:
        raise NotDone(_sentence(str(why))) from None


async def _plan_brownout(parts: Parts, fields: Mapping[str, str]) -> Plan:
    one = await _window(parts, fields)
    minutes = fields["minutes"]
    says = [
        REFUSES.format(minutes=minutes) if one.refuses else COUNTS.format(minutes=minutes),
        f"Scope: {describe_window_scope(one)}. Nothing changes at the service.",
    ]
    found = sorted(await load_window_users(parts.store, one), key=lambda each: -each.requests)
    rows = [
        [each.merchant, each.environment, each.key, each.operation, f"{each.requests:,}"]
        for each in found
    ]
    names = ("minutes", "merchant", "key", "operation", "counts")
    return Plan(
        "Start a brownout" if one.refuses else "Start a dry-run brownout",
        says,
        "Start",
        {"do": "brownout", **{name: fields.get(name, "") for name in names}},
        ("merchant", "environment", "key", "operation", "requests in 7 days"),
        rows[:SHOWN],
        max(len(rows) - SHOWN, 0),
        one.refuses,
    )


async def _brownout(parts: Parts, fields: Mapping[str, str]) -> str:
    one = await _window(parts, fields)
    await add_brownout(parts.store, one)
    what = "refuses" if one.refuses else "only counts"
    return f"began brownout {one.id} until {one.ends_at:%Y-%m-%dT%H:%M:%SZ}, {what}: {describe_window_scope(one)}"


async def _plan_brownout_off(parts: Parts, fields: Mapping[str, str]) -> Plan:
    now, id_ = parts.store.clock(), fields.get("id", "")
    open_ = [
        one
        for one in await all_brownouts(parts.store)
        if id_ in ("", one.id) and describe_window_state(one, now) in ("under way", "to come")
    ]
    if not open_:
        raise NotDone("It has ended or was already switched off.")
    return Plan(
        "Switch the brownout off" if id_ else "Switch every brownout off",
        ["Running gateways answer these requests again within a second."],
        "Switch off",
        {"do": "brownout-off", "id": id_},
        ("brownout", "scope", "state", "until"),
        [
            [
                one.id,
                describe_window_scope(one),
                describe_window_state(one, now),
                f"{one.ends_at:%Y-%m-%d %H:%M}",
            ]
            for one in open_
        ],
    )


async def _brownout_off(parts: Parts, fields: Mapping[str, str]) -> str:
    id_ = fields.get("id", "")
    if not await end_brownouts(parts.store, parts.store.clock(), id_ or None):
        raise NotDone("It has ended or was already switched off.")
    return f"switched off brownout {id_}" if id_ else "switched off every brownout"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


CHANGES: Mapping[str, Change] = {
    "freeze": Change(_plan_freeze, _freeze),
    "unfreeze": Change(_plan_unfreeze, _unfreeze),
    "mode": Change(_plan_mode, _mode),
    "brownout": Change(_plan_brownout, _brownout),
    "brownout-off": Change(_plan_brownout_off, _brownout_off),
}
