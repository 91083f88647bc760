"""Routes of the console."""

from __future__ import annotations

from aiohttp import web

from gateway.console.comparisons import ComparisonPage, ComparisonsPage
from gateway.console.dependencies import Parts
from gateway.console.explaining import ExplainPage
from gateway.console.limits import LimitsPage
from gateway.console.migration import MigrationPage
from gateway.console.overview import OverviewPage
from gateway.console.pages import Pages
from gateway.console.service import ServicePage
from gateway.console.signing_in import SigningIn
from gateway.console.static_files import serve_static_file
from gateway.console.switches import SwitchesPage
from gateway.console.traffic import TrafficPage
from gateway.console.writes import WritesPage


def add_console(application: web.Application, parts: Parts) -> None:
    """Adds the routes of the console to the application of the admin port."""
    pages = Pages(parts)
    service, switches = ServicePage(parts, pages), SwitchesPage(parts, pages)
    explain, signing_in = ExplainPage(parts, pages), SigningIn(pages)
    shown, sent = pages.shown, pages.sent
    application.add_routes(
        [
            web.get("/", shown(OverviewPage(parts, pages))),
            web.get("/traffic", shown(TrafficPage(parts, pages))),
            web.get("/limits", shown(LimitsPage(parts, pages))),
            web.get("/migration", shown(MigrationPage(parts, pages))),
            web.get("/writes", shown(WritesPage(parts, pages))),
            web.get("/compare", shown(ComparisonsPage(parts, pages))),
            web.get("/compare/key", shown(ComparisonPage(parts, pages))),
            web.get("/service", shown(service)),
            web.post("/service", sent(service.tried)),
            web.get("/switches", shown(switches)),
            web.post("/switches", sent(switches.done)),
            web.get("/switches/confirm", shown(switches.asked)),
            web.get("/explain", shown(explain)),
            web.post("/explain", sent(explain.asked)),
            web.get("/login", shown(signing_in.page)),
            web.post("/login", sent(signing_in.begins)),
            web.post("/logout", sent(signing_in.ends)),
            web.get("/assets/{name}", serve_static_file),
        ]
    )
