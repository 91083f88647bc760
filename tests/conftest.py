from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000
"""As the product sets it for itself, see ``gateway.server.memory_tuning``."""


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays: to look through it for garbage takes its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
