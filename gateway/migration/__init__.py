"""Which service answers a key: routing, forwarding, shadow traffic, brownouts, usage."""
