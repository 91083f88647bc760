"""File descriptors: every connection needs one, and the system limits them for each process."""

from __future__ import annotations

import resource

import structlog

OTHER_DESCRIPTORS = 128
"""Descriptors for everything else: the database, logs, listening sockets."""

log = structlog.get_logger()


def raise_file_limit_and_cap_connections(connections: int, upstream_connections: int) -> int:
    """Returns the number of client connections that are possible, at most ``connections``.

    Raises the soft limit of this process as far as the hard limit allows.
    """
    wanted_descriptors = connections + upstream_connections + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted_descriptors:
        soft = (
            wanted_descriptors if hard == resource.RLIM_INFINITY else min(wanted_descriptors, hard)
        )
        # Raising the soft limit up to the hard one needs no privilege.
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted_descriptors:
        return connections
    # Clients get at least a quarter of the descriptors, even if the upstream pools need more.
    available_connections = max(soft // 4, soft - upstream_connections - OTHER_DESCRIPTORS)
    log.warning(
        "open_file_limit_too_low",
        configured_connections=connections,
        effective_connections=available_connections,
        open_file_limit=soft,
        hint="raise the process's limit of open files (LimitNOFILE, ulimit -n), or set load.connections lower",
    )
    return available_connections
