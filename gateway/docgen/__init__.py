"""Explains single requests, written as curl commands."""
