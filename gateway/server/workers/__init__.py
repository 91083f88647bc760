"""Several processes on one port: a supervisor and ``server.workers`` worker processes.

The supervisor binds the ports once and keeps them open. The client port has an accept queue for
each worker (SO_REUSEPORT), and the kernel distributes connections evenly among the queues. Each
worker inherits all of them. It accepts from its own queue, and also from that of a worker that
exited, until that one is replaced. Connections in a queue survive the exit or restart of a worker,
because the supervisor holds the sockets. Two alternatives are worse: sockets that workers bind
themselves are closed with all their queued connections when a worker exits; and with one queue for
all, one worker accepts most connections before another wakes (of 8 that a proxy kept open, all 8).
The drawback: connections in the queue of a worker that hangs have to wait.

A worker is a complete gateway (``gateway.server.app.run_gateway``) in its own process. It is
started with a new interpreter instead of a fork, so that a later worker runs the current code and
configuration.

===================  ============================================================================
SIGTERM, SIGINT      all workers finish the requests in flight; exit code 0
SIGHUP               rolling restart: the configuration is read again and new workers are started.
                     When all accept connections, the old ones stop accepting, answer on their open
                     connections, and exit. If a new one does not start, nothing changes
a worker dies        its requests in flight are lost, and it is restarted; if it dies again soon,
                     after growing delays
the supervisor dies  workers notice it, finish their requests in flight, and exit
===================  ============================================================================

The supervisor serves the admin port (``admin_port``) for all workers. Each worker serves its own
admin pages on a Unix socket that only this user can access.
"""
