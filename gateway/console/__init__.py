"""The operator console: pages on the admin port that say how things stand, and switches.

Everything is made here, on the server; a little script draws lines and asks for the page anew. What a
page shows is read by the same functions as the command line's, of the state that all processes share.
Where a figure is this process's own, the page says so.

A page is one view in a module of its own and one template. ``routes`` says which there are.
"""

from gateway.console.dependencies import Parts
from gateway.console.routes import add_console

__all__ = ["Parts", "add_console"]
