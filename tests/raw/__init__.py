"""Raw requests, as tables: what is sent, what comes back, and why that is right."""
