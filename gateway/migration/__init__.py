"""Migration: routing to the legacy or current service, shadow traffic, brownouts, usage."""
