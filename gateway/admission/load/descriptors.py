"""Open files: every connection is one, and a process may have only so many."""

from __future__ import annotations

import resource

import structlog

OTHERS = 128
"""Files that are no connections of clients or to the service: the state, logs, sockets."""

log = structlog.get_logger()


def room_for(connections: int, to_service: int) -> int:
    """How many connections of clients there can be, and at most as many as are asked for.

    Raises this process's own bound as far as it may; above that is the system's.
    """
    wanted = connections + to_service + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(soft // 4, soft - to_service - OTHERS)
    log.warning(
        "open_file_limit_too_low",
        configured_connections=connections,
        effective_connections=room,
        open_file_limit=soft,
        hint="raise the process's limit of open files (LimitNOFILE, ulimit -n), or set load.connections lower",
    )
    return room
