"""The traffic control page: freezes, brownouts and modes, confirmations, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway.auth.key_rows import load_listed_keys
from gateway.console.actions import (
    ACTIONS,
    DURATION_MINUTES,
    ENVIRONMENTS,
    REFUSALS,
    execute_action,
    plan_action,
)
from gateway.console.pages import Page, redirect_see_other
from gateway.operator.interruptions import (
    describe_window_scope,
    describe_window_state,
    list_operation_names_by_group,
    load_freezes_and_audit_events,
)
from gateway.operator.mode_switches import load_switch_status
from gateway.storage.audit_log import attribute_events_to_operator, list_audit_events
from gateway.storage.brownout_rows import list_brownouts
from gateway.storage.mode_rows import GROUPS, MODES

log = structlog.get_logger()

PATH = "/switches"

MAX_AUDIT_ENTRIES = 30
MAX_BROWNOUTS = 20
MAX_AFFECTED = 50

FIELDS = frozenset(
    ["do", "merchant", "environment", "key", "group", "mode", "minutes", "operation", "id"]
)
"""The fields of the forms, which the form of a confirmation repeats."""


class TrafficControlPage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        store, now = self._store, self._store.clock()
        keys = [key for key in await load_listed_keys(store) if key.revoked_at is None]
        brownouts = [
            (brownout, describe_window_state(brownout, now), describe_window_scope(brownout))
            # The newest come first, because the list is cut off.
            for brownout in reversed(await list_brownouts(store))
        ]
        frozen, _ = await load_freezes_and_audit_events(store)
        switched = await load_switch_status(store)
        audit_entries = (await list_audit_events(store))[::-1]
        return self._pages.render_page(
            request,
            "switches",
            # Only whether it is a known name: no text of the page may come from a link.
            done=request.query.get("done") in ACTIONS,
            keys=keys,
            merchants=sorted({key.merchant for key in keys}),
            environments=ENVIRONMENTS,
            groups=GROUPS,
            modes=MODES,
            minutes=DURATION_MINUTES,
            rooms=list_operation_names_by_group(),
            brownouts=brownouts[:MAX_BROWNOUTS],
            open_brownouts=[row for row in brownouts if row[1] in ("under way", "to come")],
            frozen=frozen,
            switched=switched,
            acts=audit_entries[:MAX_AUDIT_ENTRIES],
        )

    async def confirm(self, request: web.Request) -> web.StreamResponse:
        """Shows the effect of an action and asks for confirmation; changes nothing."""
        try:
            plan = await plan_action(self._dependencies, request.query)
        except REFUSALS as error:
            return self._render_refusal(request, error)
        return self._pages.render_page(
            request,
            "confirm",
            plan=plan,
            fields={name: value for name, value in request.query.items() if name in FIELDS},
            max_rows=MAX_AFFECTED,
        )

    async def execute(self, request: web.Request, fields: Mapping[str, str]) -> web.StreamResponse:
        client_address = self._pages.find_client_address(request)
        try:
            # Operators share one token, so the audit log can only name the address.
            with attribute_events_to_operator(f"console, from {client_address}"):
                plan = await execute_action(self._dependencies, fields)
        except REFUSALS as error:
            return self._render_refusal(request, error)
        # A warning, because it changes what clients get; the audit log has it too.
        log.warning("console_change", change=plan.title, **{"client.address": client_address})
        return redirect_see_other(f"{PATH}?done={fields['do']}")

    def _render_refusal(self, request: web.Request, error: Exception) -> web.StreamResponse:
        link = PATH, "Back to traffic control"
        return self._pages.render_message(request, 409, "Nothing was changed", str(error), link)
