"""Flows carried out: each write entered before it leaves, sent once, and found out about where no answer came."""
