"""Rehearsal: runs every legacy operation at a sandbox, and tests each assumption by name."""
