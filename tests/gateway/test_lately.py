from gateway.storage.ttl_cache import TtlCache


def test_a_fact_is_known_until_its_time_is_up() -> None:
    now = 100.0
    lately: TtlCache[str, int] = TtlCache(10, 60, lambda: now)
    lately.put("a", 1)
    now += 59
    assert lately.get("a") == 1
    assert lately.get("b") is None
    now += 1
    assert lately.get("a") is None


def test_what_is_put_again_is_known_for_as_long_again() -> None:
    now = 100.0
    lately: TtlCache[str, int] = TtlCache(10, 60, lambda: now)
    lately.put("a", 1)
    now += 59
    lately.put("b", 2)
    lately.put("a", 3)
    now += 59
    assert (lately.get("a"), lately.get("b")) == (3, 2)


def test_where_there_are_more_the_oldest_is_forgotten() -> None:
    lately: TtlCache[str, int] = TtlCache(2, 60)
    for number, name in enumerate("abac"):
        lately.put(name, number)
    assert [lately.get(name) for name in "abc"] == [2, None, 3]


def test_it_keeps_none_whose_time_is_up() -> None:
    now = 100.0
    lately: TtlCache[int, int] = TtlCache(1000, 60, lambda: now)
    for number in range(500):
        lately.put(number, number)
    now += 60
    lately.put(500, 500)
    assert len(lately) == 1
