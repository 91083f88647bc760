"""The legacy face: the same merchants, recipients, batches and balances, as the earlier
interface's document describes them.

It is written from that document; where it is silent, from what clients of it are known to do and
expect. It shares the simulator's state and rules, and nothing with what translates between the
two interfaces. Names of sections are those of the earlier interface's document here, unless they
are said to be the current one's.
"""
