"""Generates the reference pages of operations and states."""
