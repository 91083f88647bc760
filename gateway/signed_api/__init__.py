"""The current interface itself: checks signed requests and passes them on."""
