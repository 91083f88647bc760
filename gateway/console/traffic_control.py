"""The traffic control page: freezes, brownouts and modes, and the audit log.

In an emergency, writes can be frozen here. Brownouts and modes are planned, and changed by commands.
"""

from collections.abc import Mapping
from typing import NamedTuple

import structlog
from aiohttp import web

from gateway.auth.key_rows import load_listed_keys
from gateway.console.pages import Pages, redirect_see_other
from gateway.operator import ActionRefused
from gateway.operator.interruptions import (
    USAGE_PERIOD,
    describe_window_scope,
    describe_window_state,
    resolve_freeze_scope,
)
from gateway.operator.mode_switches import load_switches_and_batch_counts
from gateway.storage import Store, Tenant
from gateway.storage.audit_log import (
    attribute_events_to_operator,
    describe_scope,
    is_tenant_in_scope,
    list_audit_events,
)
from gateway.storage.brownout_rows import list_brownouts
from gateway.storage.freezes import freeze_writes, list_freezes, unfreeze_writes
from gateway.storage.request_counts import load_usage

log = structlog.get_logger()

MAX_AUDIT_ENTRIES = 100
MAX_BROWNOUTS = 20
MAX_AFFECTED = 50

ENVIRONMENTS = ("live", "sandbox")

FREEZE, UNFREEZE = "freeze", "unfreeze"

FIELDS = ("do", "merchant", "environment")
"""The fields of the forms, which the form of a confirmation repeats."""

EVERYTHING = "*"
"""Chosen in a form for every merchant or environment; nothing is chosen at first."""

EFFECTS = {
    FREEZE: (
        (
            "From your confirmation on, every running gateway answers writes (creates, changes, "
            "deletions and starts) with 500, a message that says so, and Retry-After."
        ),
        (
            "Reads continue. A request in progress that takes several calls stops before its next "
            "write, and can continue when the freeze ends."
        ),
    ),
    UNFREEZE: (
        "Writes are accepted again immediately.",
        "Only this freeze ends: merchants that another freeze covers stay frozen.",
    ),
}

Fields = Mapping[str, str]


class Change(NamedTuple):
    """A freeze, or the end of one, and whom it concerns."""

    action: str
    scope: Tenant

    @property
    def title(self) -> str:
        verb = "Freeze writes" if self.action == FREEZE else "End the freeze"
        return f"{verb} of {describe_scope(self.scope)}"


async def show_traffic_control(pages: Pages, request: web.Request) -> web.StreamResponse:
    store, now = pages.store, pages.store.clock()
    keys = [key for key in await load_listed_keys(store) if key.revoked_at is None]
    brownouts = [
        (brownout, describe_window_state(brownout, now), describe_window_scope(brownout))
        # The newest come first, because the list is cut off.
        for brownout in reversed(await list_brownouts(store))
    ]
    audit_entries = (await list_audit_events(store))[::-1]
    switches, batch_counts = await load_switches_and_batch_counts(store)
    return pages.render_page(
        request,
        "switches",
        # Only whether it is a known name: no text of the page may come from a link.
        done=request.query.get("done") in EFFECTS,
        merchants=sorted({key.merchant for key in keys}),
        environments=ENVIRONMENTS,
        brownouts=brownouts[:MAX_BROWNOUTS],
        frozen=await list_freezes(store),
        switches=switches,
        batch_counts=batch_counts,
        acts=audit_entries[:MAX_AUDIT_ENTRIES],
        older_acts=max(len(audit_entries) - MAX_AUDIT_ENTRIES, 0),
    )


async def confirm_change(pages: Pages, request: web.Request) -> web.StreamResponse:
    """Shows the effect of an action and asks for confirmation; changes nothing."""
    change = await _parse_change(pages.store, request.query)
    return pages.render_page(
        request,
        "confirm",
        change=change,
        effects=EFFECTS[change.action],
        rows=await _load_affected_key_rows(pages.store, change.scope),
        fields={name: request.query[name] for name in FIELDS},
        max_rows=MAX_AFFECTED,
    )


async def execute_change(pages: Pages, request: web.Request, fields: Fields) -> web.StreamResponse:
    client_address = pages.find_client_address(request)
    change = await _parse_change(pages.store, fields)
    # Operators share one token, so the audit log can only name the address.
    with attribute_events_to_operator(f"console, from {client_address}"):
        apply = freeze_writes if change.action == FREEZE else unfreeze_writes
        is_changed = await apply(pages.store, change.scope)
    # Another operator may have done the same meanwhile.
    if not is_changed:
        raise ActionRefused("Nothing changed: it is so already.")
    # A warning, because it changes what clients get; the audit log has it too.
    log.warning("console_change", change=change.title, **{"client.address": client_address})
    return redirect_see_other(f"/switches?done={fields['do']}")


async def _parse_change(store: Store, fields: Fields) -> Change:
    """Parses a form. Raises ActionRefused, with a message that is shown on a page."""
    action = fields.get("do", "")
    if action not in EFFECTS:
        raise ActionRefused("There is no such action.")
    environment = _require_choice(fields, "environment")
    if environment not in ("", *ENVIRONMENTS):
        raise ActionRefused("There is no such environment.")
    scope = await resolve_freeze_scope(store, _require_choice(fields, "merchant"), environment)
    return Change(action, scope)


def _require_choice(fields: Fields, name: str) -> str:
    """Returns the chosen value, empty for everything. Raises ActionRefused without a choice."""
    if not (value := fields.get(name, "")):
        raise ActionRefused(f"Choose the {name}.")
    return "" if value == EVERYTHING else value


async def _load_affected_key_rows(store: Store, scope: Tenant) -> list[list[str]]:
    """Lists the affected keys, the most used first."""
    since = (store.clock() - USAGE_PERIOD).date()
    requests_by_key = {
        (usage.tenant, usage.key): usage.requests for usage in await load_usage(store, since)
    }
    keys = sorted(
        (-requests_by_key.get((key.tenant, key.name), 0), key.tenant, key.name)
        for key in await load_listed_keys(store)
        if key.revoked_at is None and is_tenant_in_scope(scope, key.tenant)
    )
    return [[*owner, name, f"{-requests:,}"] for requests, owner, name in keys]
