"""Settings and extensions."""
