"""Settings, one module for each group of sections, and the check of C extensions."""
