"""Generates the migration guide of a key from the operations that it used.

Each call is shown before and after, as the flow that serves traffic makes it
(``gateway.docgen.explain``). Examples are made up. No client data is read, only which operations
were used, how often and when.
"""

from gateway.docgen.examples import RequestExample
from gateway.docgen.guide.page import GuideData, RemainingOperation, load_guide_data, render_guide

__all__ = ["GuideData", "RemainingOperation", "RequestExample", "load_guide_data", "render_guide"]
