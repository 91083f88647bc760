from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# A case that fails shows the difference; with `-vv`, all of it.
pytest.register_assert_rewrite("tests.transcripts")

# On a busy machine any example may be slow.
settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")

COMPUTING = ("mappings", "payloads", "http", "compare")

YOUNG_OBJECTS = 10_000
"""As the product sets it for itself, see ``gateway.server.process``."""

gc.disable()  # until the tests are collected, which creates much and leaves little to free


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts short tests that only compute last: meanwhile the last of those that wait end."""
    items.sort(key=lambda item: item.path.parent.name in COMPUTING)


def pytest_collection_finish() -> None:
    """Freezes the collected tests, because the garbage collector would traverse thousands of them again and again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


@pytest.fixture(scope="session")
def require_redis() -> None:
    """Skips the test without Redis; the key file makes the names of counters unique."""
    # Not imported by every run of tests.
    import redis

    from tests.gateway.admission.limits.conftest import REDIS_URL

    client = redis.Redis.from_url(REDIS_URL)
    try:
        client.ping()
    except redis.RedisError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Redis: {error}")
    finally:
        client.close()
