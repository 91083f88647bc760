from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000
"""As the product sets it for itself, see ``gateway.server.memory_tuning``."""


def pytest_collection_finish() -> None:
    """Freezes the collected tests, because the garbage collector would traverse thousands of them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
