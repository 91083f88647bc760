"""The current interface: checks signed requests and passes them on."""
