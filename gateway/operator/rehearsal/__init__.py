"""Rehearsal: runs every legacy operation against a sandbox, and tests each assumption by name.

``scenario`` has the requests, ``assumptions.md`` what the translation presumes of a service, and
``checks`` how that is tested. ``run`` and ``runner`` do both, and ``report`` shows the result.
"""
