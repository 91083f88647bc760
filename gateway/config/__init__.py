"""Settings, and the check of C extensions."""
