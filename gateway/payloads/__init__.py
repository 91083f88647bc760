"""JSON payloads of any size."""
