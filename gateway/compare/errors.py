"""What keeps a comparison from being run."""

from __future__ import annotations


class Unusable(Exception):
    """What was given cannot be used; says what, where and why, and never a secret."""
