"""An index of a merchant's recipients, for questions that the service cannot answer.

What a row holds: the fields that legacy queries filter and order by, as they are, and what an answer
shows of a recipient, packed. Nothing that no answer shows is kept. The service gives no ten recipients by
their ids in one call, so a page can only come from here; what makes that right is that before each answer
the index is brought up to the service's list.

Where: in the memory of each process, by merchant and environment. None of it is stored, so there is nothing
to encrypt and nothing that outlives the process; to read 100,000 again takes some 400 calls.

How it is kept: first the whole list, in walks along the update dates. Then, for every question, two calls:
how many there are, and what was changed since (by the service's own update-date filter, with an overlap
for what shows late). As many here as there, and they are the same ones (``held``). Where somebody was archived
elsewhere there are fewer there, and a third call asks who was archived last; where the service does not show
that, it is found by counting along the update dates. After
``lists.index_seconds`` all of it is read again, mostly beside the queries: this is for what moves no update
date. What is changed through a gateway and moves none is read anew by its id before the next answer.

While it is built, whoever asks waits for it, as for a reading of the whole list today; when the service
fails half-way they get the error that a reading would have given. Never a part. Where the service cannot be
kept up with (no counts, no update dates), or there is no room, the list is read for each question as without
an index, and after that age it is tried again.
"""

from gateway.reads.index.indexes import Figures, Indexes
from gateway.reads.index.invalidation import Dropping, invalidate_indexes
from gateway.reads.index.recipient_cache import list_no_processes
from gateway.reads.index.remote_changes import Elsewhere
from gateway.reads.index.synchronization import NoIndex

__all__ = [
    "Dropping",
    "Elsewhere",
    "Figures",
    "Indexes",
    "NoIndex",
    "invalidate_indexes",
    "list_no_processes",
]
