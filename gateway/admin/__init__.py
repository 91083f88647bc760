"""The admin port: health checks, metrics, and access control."""
