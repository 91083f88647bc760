"""Settings: the file, the environment, and the sections."""
