"""The operator console: status pages and traffic control on the admin port.

Pages are rendered on the server; small scripts refresh them and draw lines. They use the same
functions as the commands, on the database that all processes share. Figures that belong to one
worker only are marked so.

Each page has one view, in its own module, and one template. ``add_console_routes`` lists them.
"""

from __future__ import annotations

from aiohttp import web

from gateway.console.alerts import HealthChecks
from gateway.console.dependencies import ConsoleDependencies
from gateway.console.explaining import ExplainPage
from gateway.console.listings import ComparisonsPage, LimitsPage, WritesPage
from gateway.console.migration import MigrationPage
from gateway.console.overview import OverviewPage
from gateway.console.pages import Pages, serve_static_file
from gateway.console.requests import RequestsPage
from gateway.console.service import ServicePage
from gateway.console.traffic import TrafficPage
from gateway.console.traffic_control import TrafficControlPage

__all__ = ["ConsoleDependencies", "add_console_routes"]


def add_console_routes(application: web.Application, dependencies: ConsoleDependencies) -> None:
    """Adds the routes of the console to the application of the admin port."""
    pages, health = parts = Pages(dependencies), HealthChecks(dependencies)
    service, switches = ServicePage(*parts), TrafficControlPage(*parts)
    requests, explain = RequestsPage(*parts), ExplainPage(*parts)
    # Only POST changes something, and only through `form_view`, which checks its origin.
    view, form_view = pages.wrap_view, pages.wrap_form_view
    application.add_routes(
        [
            web.get("/", view(OverviewPage(*parts))),
            web.get("/traffic", view(TrafficPage(*parts))),
            web.get("/requests", view(requests)),
            requests.worker_list.build_route(),
            web.get("/trace", view(requests.trace)),
            web.get("/limits", view(LimitsPage(*parts))),
            web.get("/migration", view(MigrationPage(*parts))),
            web.get("/writes", view(WritesPage(*parts))),
            web.get("/compare", view(ComparisonsPage(*parts))),
            web.get("/service", view(service)),
            health.refusals.build_route(),
            web.post("/service", form_view(service.run_and_show_doctor_checks)),
            web.get("/switches", view(switches)),
            web.post("/switches", form_view(switches.execute)),
            web.get("/switches/confirm", view(switches.confirm)),
            web.get("/explain", view(explain)),
            web.post("/explain", form_view(explain.explain)),
            # Not wrapped: the page about an unavailable database needs its style too.
            web.get("/assets/{name}", serve_static_file),
            # Last: every other address.
            web.get("/{path:.*}", pages.show_unknown_page),
        ]
    )
