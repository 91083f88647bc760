"""The legacy interface, over the same merchants, recipients, batches and balances.

It is written from the legacy interface's document and, if that is silent, from the known behaviour
of its clients. It shares state and rules with the rest of the simulator, and no code with the
gateway's translation. Bare section numbers in this package are of the legacy interface's document.
"""
