"""The traffic control page: freezes, brownouts and modes, confirmations, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway.auth.key_rows import load_listed_keys
from gateway.console.actions import CHANGES, ENVIRONMENTS, MINUTES, Change, NotDone
from gateway.console.dependencies import Parts
from gateway.console.pages import Pages, redirect_see_other
from gateway.operator.cutover_windows import (
    describe_window_scope,
    describe_window_state,
    group_operation_names,
)
from gateway.operator.freezes import load_freeze_status as frozen_standing
from gateway.operator.mode_switches import load_switch_status as switched_standing
from gateway.storage.audit_log import acting, acts_of
from gateway.storage.brownout_rows import all_brownouts, hits_of
from gateway.storage.mode_rows import GROUPS, MODES

log = structlog.get_logger()

PATH = "/switches"

CHOICES = 200
"""With more keys, names are typed instead of chosen from a list."""

ACTS_SHOWN = 30
BROWNOUTS_SHOWN = 20


class SwitchesPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._parts = parts
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        store, now = self._parts.store, self._parts.store.clock()
        keys = [one for one in await load_listed_keys(store) if one.revoked_at is None]
        hits = await hits_of(store)
        brownouts = [
            (
                one,
                describe_window_state(one, now),
                describe_window_scope(one),
                sum(hits.get(one.id, {}).values()),
            )
            for one in reversed(await all_brownouts(store))
        ]
        frozen, _ = await frozen_standing(store)
        switched = await switched_standing(store)
        acts = (await acts_of(store))[::-1]
        return self._pages.page(
            request,
            "switches",
            done=request.query.get("done") in CHANGES,
            keys=keys,
            typed=len(keys) > CHOICES,
            merchants=sorted({one.merchant for one in keys}),
            environments=ENVIRONMENTS,
            groups=GROUPS,
            modes=MODES,
            minutes=MINUTES,
            rooms=group_operation_names(),
            brownouts=brownouts[:BROWNOUTS_SHOWN],
            open_brownouts=[one for one in brownouts if one[1] in ("under way", "to come")],
            frozen=frozen,
            switched=switched,
            acts=acts[:ACTS_SHOWN],
        )

    async def asked(self, request: web.Request) -> web.StreamResponse:
        """Shows the effect of an action and asks for confirmation; changes nothing."""
        try:
            plan = await _change(request.query).plan(self._parts, request.query)
        except NotDone as why:
            return self._not_done(request, why)
        return self._pages.page(request, "confirm", plan=plan)

    async def done(self, request: web.Request, fields: Mapping[str, str]) -> web.StreamResponse:
        who = self._pages.asked_from(request)
        try:
            with acting(f"console, from {who}"):
                did = await _change(fields).do(self._parts, fields)
        except NotDone as why:
            return self._not_done(request, why)
        log.warning("console_change", change=did, **{"client.address": who})
        return redirect_see_other(f"{PATH}?done={fields['do']}")

    def _not_done(self, request: web.Request, why: NotDone) -> web.StreamResponse:
        return self._pages.page(request, "not_done", 409, why=str(why))


def _change(fields: Mapping[str, str]) -> Change:
    if (change := CHANGES.get(fields.get("do", ""))) is None:
        raise NotDone("There is no such action.")
    return change
