"""Request explanations, and the examples of requests."""
