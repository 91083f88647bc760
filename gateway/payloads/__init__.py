"""Encodes, decodes and stores JSON payloads of any size."""
