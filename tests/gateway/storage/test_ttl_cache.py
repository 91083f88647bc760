from gateway.storage.ttl_cache import TtlCache


def test_value_is_cached_until_it_expires() -> None:
    now = 100.0
    ttl_cache: TtlCache[str, int] = TtlCache(10, 60, lambda: now)
    ttl_cache.put("a", 1)
    now += 59
    assert ttl_cache.get("a") == 1
    assert ttl_cache.get("b") is None
    now += 1
    assert ttl_cache.get("a") is None


def test_repeated_put_renews_expiry() -> None:
    now = 100.0
    ttl_cache: TtlCache[str, int] = TtlCache(10, 60, lambda: now)
    ttl_cache.put("a", 1)
    now += 59
    ttl_cache.put("b", 2)
    ttl_cache.put("a", 3)
    now += 59
    assert (ttl_cache.get("a"), ttl_cache.get("b")) == (3, 2)


def test_oldest_entry_is_evicted_at_capacity() -> None:
    ttl_cache: TtlCache[str, int] = TtlCache(2, 60)
    for number, name in enumerate("abac"):
        ttl_cache.put(name, number)
    assert [ttl_cache.get(name) for name in "abc"] == [2, None, 3]


def test_expired_entries_are_removed() -> None:
    now = 100.0
    ttl_cache: TtlCache[int, int] = TtlCache(1000, 60, lambda: now)
    for number in range(500):
        ttl_cache.put(number, number)
    now += 60
    ttl_cache.put(500, 500)
    assert len(ttl_cache._entries) == 1
