"""Runs executor, journal and reconciler in simulated time in front of a failing service, without sockets.

A run depends on its seed alone, so that every finding can be repeated:
``python -m tests.simulation --seeds 17``.
"""
