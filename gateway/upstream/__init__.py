"""The current service, from here: one client, and what a request of it needs to leave once and well."""
