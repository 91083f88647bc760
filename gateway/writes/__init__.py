"""Executes flows: each write is recorded before it leaves, is sent once, and is reconciled if its
response is lost.
"""
