"""The login page."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway.admin.session import COOKIE, Throttle
from gateway.console.forms import new_session_cookie, set_cookie
from gateway.console.pages import Pages, redirect_see_other

log = structlog.get_logger()


class SigningIn:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._throttle = Throttle()

    async def page(self, request: web.Request) -> web.StreamResponse:
        sessions = self._pages.sessions
        if not sessions.are_needed or sessions.is_good(request.cookies.get(COOKIE, "")):
            return redirect_see_other("/")
        return self._pages.page(request, "login", wrong=False)

    async def begins(self, request: web.Request, fields: Mapping[str, str]) -> web.StreamResponse:
        sessions = self._pages.sessions
        if not sessions.are_needed:
            return redirect_see_other("/")
        who = self._pages.asked_from(request)
        if (cookie := sessions.begun_with(fields.get("token", "").strip())) is None:
            log.warning("console_login_refused", **{"client.address": who})
            await self._throttle.fail(who)
            return self._pages.page(request, "login", 403, wrong=True)
        log.info("console_login", **{"client.address": who})
        response = redirect_see_other("/")
        set_cookie(request, response, cookie)
        return response

    async def ends(self, request: web.Request, _fields: Mapping[str, str]) -> web.StreamResponse:
        self._pages.sessions.end(request.cookies.get(COOKIE, ""))
        response = redirect_see_other("/login" if self._pages.sessions.are_needed else "/")
        set_cookie(request, response, new_session_cookie())
        return response
