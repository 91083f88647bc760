"""Tables of raw requests: the bytes sent, the responses, and why these are right."""
