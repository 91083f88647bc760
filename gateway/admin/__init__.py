"""The admin port: what it answers, and whom."""
