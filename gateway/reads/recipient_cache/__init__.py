"""The recipient cache: a merchant's recipients, for list queries that the service cannot answer.

An entry has the fields that legacy queries filter and sort by, and, compressed, those that answers
show. The service cannot return several recipients by their ids in one call, so a page has to come
from the cache. It is correct because the cache is synchronized with the service's list before each
answer.

The cache is in the memory of each process, for each merchant and environment. Nothing is stored on
disk, so nothing has to be encrypted or outlives the process. Loading 100,000 recipients takes about
400 calls.

Synchronization: the first refresh reads the whole list in walks along the update dates. Then each
query makes two calls: the number of recipients, and those changed since the last call (filtered by
update date, with an overlap for changes that become visible late). If the numbers are equal, so are
the recipients; see ``cache``. If a recipient was archived elsewhere, the service has fewer; a third
call lists the archived ones. If that does not explain the difference, the whole list is refreshed
before the answer. After ``lists.index_seconds`` it is refreshed too, usually in the background, to
find changes that do not move the update date. If such a change was made through a gateway, the
recipient is read again by its id before the next answer.

During the first refresh queries wait, and if the service fails they get its error; never a partial
list. If the service does not support the synchronization (no counts or no update dates), or the
cache has no room, each query scans the list, and caching is tried again after
``lists.index_seconds``.
"""

from gateway.reads.recipient_cache.caches import CacheFigures, RecipientCaches
from gateway.reads.recipient_cache.date_reader import CacheUnavailable
from gateway.reads.recipient_cache.remote_changes import RemoteChanges

__all__ = [
    "CacheFigures",
    "CacheUnavailable",
    "RecipientCaches",
    "RemoteChanges",
]
