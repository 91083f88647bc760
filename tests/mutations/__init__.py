"""Mutations: breaks every row of every table of `mappings/` in turn; the proof must notice.

A mutant is the source of a module with one change: a row dropped, swapped with its neighbour, misspelt or off by
one word; in flows an amount, a page or an order. A gateway with the mutant gets the sequences of
`tests/proof/coverage.py`, beside the simulator's legacy interface without one. A mutant survives if all responses
are alike; `survivors.toml` lists those that may, each with its reason.
"""
