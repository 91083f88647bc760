"""Generates the reference pages of configuration, operations and states."""
