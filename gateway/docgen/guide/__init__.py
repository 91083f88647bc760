"""What a merchant's developers have to change, made of what they really used.

Every call is shown before and after, as the flow that serves traffic makes it (``gateway.docgen.explain``);
examples are made up, and nothing that a client ever sent is looked at: only which operations it
used, how often and when.
"""

from gateway.docgen.guide.model import Gathered, Left, load_guide_data
from gateway.docgen.guide.page import render_guide
from gateway.docgen.request_examples import RequestExample

__all__ = ["Gathered", "Left", "RequestExample", "load_guide_data", "render_guide"]
