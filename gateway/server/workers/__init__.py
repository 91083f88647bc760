"""Several processes on one port: a parent, and ``server.workers`` workers that do the work.

The parent binds the ports once, and keeps them. The clients' port has a queue of waiting
connections for each worker (SO_REUSEPORT), and the kernel spreads connections evenly among the
queues. Each worker inherits all of them and takes connections from its own, and from that of a
worker that died until another has taken its place. The queues are the parent's: when a worker
ends, dies or is replaced, what waits in its queue stays there for the next. (Sockets that workers
bind themselves are reset with all that waits in them when a worker ends. One queue for all loses
nothing either, but there one worker takes as many connections as it can get before another wakes:
of 8 that a proxy opened and kept, all 8. The price: what waits in the queue of a worker that hangs
and does not die waits with it.)

A worker is the whole gateway (``gateway.server.app.run``) in a process of its own, started anew and not
forked, so that one that is started later runs the code and the configuration of that time.

===================  ============================================================================
SIGTERM, SIGINT      all workers finish what is in flight; exit 0
SIGHUP               rolling restart: the configuration is read again and new workers are
                     started; when all accept, the old ones take no new connections, answer on
                     those that they have, and end. If one does not come up, nothing changes
a worker dies        what it had in flight is lost, and another takes its place; if it dies again
                     soon, after growing pauses
the parent dies      workers see it, finish what is in flight, and end
===================  ============================================================================

The admin port is the parent's (``admin``): it answers for all workers, each of which serves its
own admin pages on a Unix socket that only this user can reach.
"""
