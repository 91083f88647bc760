"""HTTP clients of the services: signing, sending once, clock skew, circuit breakers."""
