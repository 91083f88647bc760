"""The legacy interface, over the same merchants, recipients, batches and balances.

It is written from the earlier interface's document and, if that is silent, from the known behaviour
of its clients. It shares state and rules with the rest of the simulator, and no code with the
gateway's translation. Sections in this package are those of the earlier interface's document,
unless the current one is named.
"""
