from gateway.storage.ttl_cache import TtlCache


def test_value_is_cached_until_it_expires() -> None:
    now = 100.0
    lately: TtlCache[str, int] = TtlCache(10, 60, lambda: now)
    lately.put("a", 1)
    now += 59
    assert lately.get("a") == 1
    assert lately.get("b") is None
    now += 1
    assert lately.get("a") is None


def test_repeated_put_renews_expiry() -> None:
    now = 100.0
    lately: TtlCache[str, int] = TtlCache(10, 60, lambda: now)
    lately.put("a", 1)
    now += 59
    lately.put("b", 2)
    lately.put("a", 3)
    now += 59
    assert (lately.get("a"), lately.get("b")) == (3, 2)


def test_oldest_entry_is_evicted_at_capacity() -> None:
    lately: TtlCache[str, int] = TtlCache(2, 60)
    for number, name in enumerate("abac"):
        lately.put(name, number)
    assert [lately.get(name) for name in "abc"] == [2, None, 3]


def test_expired_entries_are_removed() -> None:
    now = 100.0
    lately: TtlCache[int, int] = TtlCache(1000, 60, lambda: now)
    for number in range(500):
        lately.put(number, number)
    now += 60
    lately.put(500, 500)
    assert len(lately) == 1
