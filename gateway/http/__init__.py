"""HTTP towards clients: request parsing, response bodies, TLS, delivery."""
