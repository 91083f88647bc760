"""Rehearsal: runs every legacy operation against a sandbox, and tests each assumption by name.

``scenario`` makes the requests, ``assumptions`` is the table of what the translation presumes,
``sandbox`` reaches the service and cleans up, and ``report`` and ``page`` show the result.
"""
