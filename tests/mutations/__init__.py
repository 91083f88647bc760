"""Mutations: every row of every table of `mappings/` broken in turn, and looked for by the proof.

A mutant is one module's source with one thing changed: a row dropped, swapped with its neighbour,
misspelt, off by one word; in flows an amount, a page or an order. A gateway is started with it, and
asked what `tests/proof/coverage.py` asks, beside a legacy face that has no mutant. One that is
answered alike in all of it has survived; `survivors.toml` has those that may, each with its reason.
"""
