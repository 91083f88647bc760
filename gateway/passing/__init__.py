"""Requests that carry their own credentials: passed on as they came, and answers as they come."""
