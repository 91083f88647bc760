"""The signed face: requests of the current interface itself."""
