"""Rate limits, concurrency, memory and connections."""
