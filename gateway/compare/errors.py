"""Errors in the input of a comparison."""

from __future__ import annotations


class InputError(Exception):
    """An option or input file is invalid. The message names the place and the reason, never a secret."""
