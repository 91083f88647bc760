"""Rendering of pages: templates, menu, response headers, and formats of figures."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.console.alerts import HealthChecks
from gateway.console.dependencies import ConsoleDependencies, WorkerList
from gateway.observability.recent_requests import RecentRequest, list_recent_requests
from gateway.operator import ActionRefused
from gateway.storage import StoreUnavailable
from gateway.storage.audit_log import describe_scope
from gateway.upstream.http_connection import VERSION

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
View = Callable[["Pages", web.Request], Awaitable[web.StreamResponse]]
FormView = Callable[["Pages", web.Request, Mapping[str, str]], Awaitable[web.StreamResponse]]

PAGE_HEADERS = {
    # Not even in the browser's cache, where pages would remain.
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer", browsers send "Origin: null" with forms, and the origin check would fail.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class MenuEntry(NamedTuple):
    """A menu entry. The script refreshes an ``is_live`` page while it is visible."""

    path: str
    name: str
    is_live: bool = False


MENU = (
    MenuEntry("/", "Overview", is_live=True),
    MenuEntry("/traffic", "Traffic", is_live=True),
    MenuEntry("/requests", "Requests", is_live=True),
    MenuEntry("/limits", "Limits", is_live=True),
    MenuEntry("/migration", "Migration"),
    MenuEntry("/writes", "Writes"),
    MenuEntry("/compare", "Comparison"),
    MenuEntry("/service", "Service"),
    MenuEntry("/switches", "Traffic control"),
    MenuEntry("/explain", "Explain"),
)


class Pages:
    """What the views share: they are functions of it and a request. Also handles errors and forms."""

    def __init__(self, dependencies: ConsoleDependencies) -> None:
        self.dependencies, self.store = dependencies, dependencies.store
        self.health = HealthChecks(dependencies)
        self.recent_requests = WorkerList(
            dependencies, "/requests/own", list_recent_requests, RecentRequest
        )
        self._templates = Environment(
            loader=PackageLoader("gateway.console"),
            autoescape=True,
            # A renamed attribute must fail a test, not leave a page with an empty cell.
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "number": "{:,.0f}".format,
            "sentence": format_sentence,
            "ms": format_milliseconds,
            "share": format_percentage,
            "moment": lambda at: f"{at:%Y-%m-%d %H:%M}" if at else "\N{EN DASH}",
            "ago": lambda at: format_age(self.store.clock() - at) if at else "never",
            "scope": describe_scope,
            "wrappable": make_name_wrappable,
        }
        self._templates.globals |= {
            "places": MENU,
            "asset": format_static_file_url,
            "version": VERSION,
        }

    def render_page(
        self, request: web.Request, template: str, status: int = 200, **values: Any
    ) -> web.Response:
        text = self._templates.get_template(f"{template}.html.j2").render(
            path=request.path,
            now=self.store.clock(),
            **values,
        )
        return web.Response(
            text=text, status=status, content_type="text/html", headers=PAGE_HEADERS
        )

    def render_message(
        self, request: web.Request, status: int, heading: str, text: str, link: tuple[str, str]
    ) -> web.Response:
        """Renders a page that says why there is no other; ``link`` is an address and its text."""
        level = "warning" if status in (404, 409) else "error"
        texts = {"heading": heading, "text": text, "href": link[0], "link": link[1]}
        return self.render_page(request, "message", status, level=level, **texts)

    async def show_unknown_page(self, request: web.Request) -> web.Response:
        text = "The console has no page at this address."
        return self.render_message(request, 404, "No such page", text, ("/", "Open the overview"))

    def wrap_view(self, view: View) -> Handler:
        """Wraps a view: if an action is refused or the database unavailable, a page says so."""

        async def handle_request(request: web.Request) -> web.StreamResponse:
            try:
                return await view(self, request)
            # Only on the page for traffic control.
            except ActionRefused as refused:
                text, link = str(refused), ("/switches", "Back to traffic control")
                return self.render_message(request, 409, "Nothing was changed", text, link)
            except StoreUnavailable as unavailable:
                heading, link = "The database is unavailable", (request.path, "Try again")
                text = f"{unavailable}. This page needs the database"
                return self.render_message(request, 503, heading, text, link)

        return handle_request

    def wrap_form_view(self, view: FormView) -> Handler:
        """Wraps a view that handles a submitted form: checks that this console's page sent it."""

        async def handle_form(_pages: Pages, request: web.Request) -> web.StreamResponse:
            if problem := _find_form_problem(request):
                link = request.path, "Open the page"
                return self.render_message(request, 403, "Nothing was done", problem, link)
            fields = {name: str(value) for name, value in (await request.post()).items()}
            return await view(self, request, fields)

        return self.wrap_view(handle_form)

    def find_client_address(self, request: web.Request) -> str:
        """Returns the client's address, which a parent process passes on to its workers."""
        address = request.remote
        # Trusted only behind the parent, which replaces it; otherwise a client could choose it.
        if self.dependencies.admin_socket:
            address = request.headers.get(CLIENT_ADDRESS_HEADER)
        return address or "unknown"


def build_requests_url(**filters: str | int) -> str:
    return f"/requests?{urlencode(filters)}"


def redirect_see_other(path: str) -> web.Response:
    """Redirects with 303, so that a reload does not submit the form again."""
    return web.Response(status=303, headers={**PAGE_HEADERS, "Location": path})


# Formats


def make_name_wrappable(name: str) -> Markup:
    """Allows line breaks after the underscores of a name, for narrow columns."""
    return escape(name).replace("_", Markup("_<wbr>"))


def format_sentence(text: str) -> str:
    """Begins a text with a capital letter and ends it with a full stop."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def format_milliseconds(value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    if value >= 10_000:
        return f"{value / 1000:,.0f}\N{NO-BREAK SPACE}s"
    return f"{value:,.{1 if value < 100 else 0}f}\N{NO-BREAK SPACE}ms"


def format_percentage(part: float, whole: float) -> str:
    if not whole:
        return "\N{EN DASH}"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1\N{NO-BREAK SPACE}%"
    return f"{percent:.{1 if percent < 10 else 0}f}\N{NO-BREAK SPACE}%"


def format_age(age: timedelta) -> str:
    seconds = age.total_seconds()
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)}\N{NO-BREAK SPACE}{name} ago"
    return "just now"


# Forms: the browser says which origin a request comes from; every browser has done so for years


def _find_form_problem(request: web.Request) -> str:
    """Returns why a request is not accepted as a form of this console; empty if it is."""
    if not _is_same_origin(request):
        return "This request was not sent by a page of this console."
    # Not multipart: aiohttp would write files in it to disk.
    if request.content_type != "application/x-www-form-urlencoded":
        return "This request is not a form."
    return ""


def _is_same_origin(request: web.Request) -> bool:
    """Whether the browser reports that a page of the same origin sent the request."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    # Every browser with a form sends one of them. A program can use the commands.
    if site is None and origin is None:
        return False
    try:
        # Host and port only: behind a proxy that ends TLS, the scheme differs.
        host = urlsplit(origin).netloc if origin is not None else request.headers.get("Host")
    except ValueError:
        return False
    return site in (None, "same-origin") and bool(host) and host == request.headers.get("Host")


ASSETS = Path(__file__).parent / "assets"


@cache
def format_static_file_url(name: str) -> str:
    """Returns the URL of a file, which changes with the content: browsers may cache it forever."""
    return f"/assets/{name}?{hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:12]}"


async def serve_static_file(request: web.Request) -> web.FileResponse:
    file = ASSETS / request.match_info["name"]
    # An encoded name could lead elsewhere.
    if file.parent != ASSETS or not file.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(
        file,
        headers={
            "Cache-Control": "public, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        },
    )
