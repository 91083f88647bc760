"""The running gateway: the only I/O in the house. What a request means is in ``mappings``."""
