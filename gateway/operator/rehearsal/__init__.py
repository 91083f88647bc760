"""Rehearsal: runs every legacy operation against a sandbox, and tests each assumption by name.

``assumptions.md`` has what the translation presumes of a service, and ``scenario.md`` the requests
that test it, together with ``checks``. ``run`` sends them, ``runner`` cleans up, and ``report``
shows the result.
"""
