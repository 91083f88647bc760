"""File descriptors: every connection needs one, and the system limits them for each process."""

from __future__ import annotations

import resource

import structlog

OTHERS = 128
"""Descriptors for everything else: the database, logs, listening sockets."""

log = structlog.get_logger()


def room_for(connections: int, to_service: int) -> int:
    """Return how many client connections are possible, at most ``connections``.

    Raises the soft limit of this process as far as the hard limit allows.
    """
    wanted = connections + to_service + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    # Clients get at least a quarter of the descriptors, even if the upstream pools need more.
    room = max(soft // 4, soft - to_service - OTHERS)
    log.warning(
        "open_file_limit_too_low",
        configured_connections=connections,
        effective_connections=room,
        open_file_limit=soft,
        hint="raise the process's limit of open files (LimitNOFILE, ulimit -n), or set load.connections lower",
    )
    return room
