"""The operator console: status pages and traffic control on the admin port.

Pages are rendered on the server; small scripts refresh them and draw lines. They use the same
functions as the commands, on the database that all processes share. Figures that belong to one
worker only are marked so.

Each page has one view, in its own module, and one template. ``routes`` lists them.
"""

from gateway.console.dependencies import ConsoleDependencies
from gateway.console.routes import add_console_routes

__all__ = ["ConsoleDependencies", "add_console_routes"]
