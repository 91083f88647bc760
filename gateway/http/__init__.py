"""HTTP as clients speak it: sockets, TLS, what is read of a request and how an answer is sent."""
