"""A load and fault run on loopback, bounded in time: ``make soak``. It is no test of `make test`."""
