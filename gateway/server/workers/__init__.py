"""Several processes on one port: a parent and ``server.workers`` worker processes.

A worker is a complete gateway (``gateway.server.app.run_gateway``) in a new interpreter, which listens
on the port with SO_REUSEPORT: the kernel distributes the connections among the workers. With one
shared socket a worker would accept most connections before another wakes (of 8 that a proxy kept
open, all 8). The parent only reserves the port.

===============  ================================================================================
SIGTERM, SIGINT  all workers finish the requests in flight; exit code 0
SIGHUP           all workers load the TLS certificate again
a worker dies    its requests in flight are lost, and it is replaced; if it dies again soon, after
                 growing delays
the parent dies  workers notice it, finish their requests in flight, and exit
===============  ================================================================================

The parent serves the admin port (``admin_port``) for all workers. Each worker serves its own admin
pages on a Unix socket that only this user can access.

A worker's standard input is a socket to its parent. Each sends one line of JSON: the parent the
``WorkerStart``, the worker null when it accepts connections, or else why it cannot. Each notices the
exit of the other by the end of the stream.
"""
