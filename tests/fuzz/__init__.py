"""Properties that hold for any bytes; ``python -m tests.fuzz`` looks for bytes that violate them."""
