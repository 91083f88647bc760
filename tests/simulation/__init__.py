"""Player, journal and settling in simulated time, before a service that fails: many seeds, no socket.

Everything that a seed decides is decided by it alone, so that what it finds can be played again:
``python -m tests.simulation --seeds 17``.
"""
