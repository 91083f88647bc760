"""Operator actions behind the commands and the console: freezes, modes, cutover, retention, checks."""


class ActionRefused(Exception):
    """An action of an operator is refused. The message is one line."""
