"""Rehearsal: runs every legacy operation against a sandbox, and tests each assumption by name.

``assumptions.md`` has what the translation presumes, and ``scenario.md`` the requests that test it.
"""
