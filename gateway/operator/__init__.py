"""What operators do and see: stops, switches, writes of unknown outcome, cutovers, what is forgotten."""
