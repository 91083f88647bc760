"""What a merchant's developers have to change, made of what they really used.

Every call is shown before and after, as the flow that serves traffic makes it (``gateway.explain``);
examples are made up, and nothing that a client ever sent is looked at: only which operations it
used, how often and when.
"""

from gateway.before import Before
from gateway.guide.gathered import Gathered, Left, gathered
from gateway.guide.page import page_of

__all__ = ["Before", "Gathered", "Left", "gathered", "page_of"]
