"""The operator console: status pages and traffic control on the admin port.

Pages are rendered on the server; small scripts refresh them and draw lines. They use the same
functions as the commands, on the database that all processes share. Figures that belong to one
worker only are marked so.

Each page has one view, in its own module, and one template. ``add_console_routes`` lists them.
"""

from aiohttp import web

from gateway.console import traffic_control
from gateway.console.dependencies import ConsoleDependencies
from gateway.console.explaining import explain_request_text, show_explain_form
from gateway.console.listings import show_comparisons, show_limits, show_writes
from gateway.console.migration import show_migration
from gateway.console.overview import show_overview
from gateway.console.pages import Pages, serve_static_file
from gateway.console.requests import show_requests, show_trace
from gateway.console.service import run_and_show_doctor_checks, show_service
from gateway.console.traffic import show_traffic

__all__ = ["ConsoleDependencies", "add_console_routes"]


def add_console_routes(application: web.Application, dependencies: ConsoleDependencies) -> None:
    """Adds the routes of the console to the application of the admin port."""
    pages = Pages(dependencies)
    # Only POST changes something, and only through `form_view`, which checks its origin.
    view, form_view = pages.wrap_view, pages.wrap_form_view
    application.add_routes(
        [
            web.get("/", view(show_overview)),
            web.get("/traffic", view(show_traffic)),
            web.get("/requests", view(show_requests)),
            pages.recent_requests.build_route(),
            web.get("/trace", view(show_trace)),
            web.get("/limits", view(show_limits)),
            web.get("/migration", view(show_migration)),
            web.get("/writes", view(show_writes)),
            web.get("/compare", view(show_comparisons)),
            web.get("/service", view(show_service)),
            pages.health.refusals.build_route(),
            web.post("/service", form_view(run_and_show_doctor_checks)),
            web.get("/switches", view(traffic_control.show_traffic_control)),
            web.post("/switches", form_view(traffic_control.execute_change)),
            web.get("/switches/confirm", view(traffic_control.confirm_change)),
            web.get("/explain", view(show_explain_form)),
            web.post("/explain", form_view(explain_request_text)),
            # Not wrapped: the page about an unavailable database needs its style too.
            web.get("/assets/{name}", serve_static_file),
            # Last: every other address.
            web.get("/{path:.*}", pages.show_unknown_page),
        ]
    )
