"""Mutations: breaks every row of every table of `mappings/` in turn; the proof must detect it.

A mutant is the source of a module with one change: a row dropped, swapped with its neighbour, misspelt or off by
one word; in flows an amount, a page or an order. A gateway with the mutant gets the sequences of
`tests/proof/coverage.py`, as does the simulator's legacy interface. A mutant survives if all responses
are equal; `survivors.toml` lists those that may, each with its reason.
"""
