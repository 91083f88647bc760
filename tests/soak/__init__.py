"""A time-bounded load and fault run on loopback: ``make soak``. Not part of `make test`."""
