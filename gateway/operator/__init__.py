"""Operator actions behind the commands and the console: freezes, modes, cutover, retention, checks."""
