"""The login page."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway.admin.session import COOKIE, Throttle
from gateway.console.forms import generate_session_cookie_value, set_session_cookie
from gateway.console.pages import Pages, redirect_see_other

log = structlog.get_logger()


class LoginPage:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._throttle = Throttle()

    async def show_form(self, request: web.Request) -> web.StreamResponse:
        sessions = self._pages.sessions
        if not sessions.is_login_required or sessions.is_valid(request.cookies.get(COOKIE, "")):
            return redirect_see_other("/")
        return self._pages.render_page(request, "login", wrong=False)

    async def log_in(self, request: web.Request, fields: Mapping[str, str]) -> web.StreamResponse:
        sessions = self._pages.sessions
        if not sessions.is_login_required:
            return redirect_see_other("/")
        client_address = self._pages.find_client_address(request)
        if (cookie := sessions.log_in(fields.get("token", "").strip())) is None:
            log.warning("console_login_refused", **{"client.address": client_address})
            # After the check: a right token is never delayed, however many wrong ones are waiting.
            await self._throttle.delay_authentication_failure(client_address)
            return self._pages.render_page(request, "login", 403, wrong=True)
        log.info("console_login", **{"client.address": client_address})
        response = redirect_see_other("/")
        set_session_cookie(request, response, cookie)
        return response

    async def log_out(self, request: web.Request, _fields: Mapping[str, str]) -> web.StreamResponse:
        self._pages.sessions.revoke(request.cookies.get(COOKIE, ""))
        response = redirect_see_other("/login" if self._pages.sessions.is_login_required else "/")
        # A new cookie, so that forms opened before the logout cannot be sent any more.
        set_session_cookie(request, response, generate_session_cookie_value())
        return response
