"""What the gateway counts of itself: every kind of outcome, and nothing that a client can multiply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.http.request_paths import PathTemplates
from gateway.observability import metrics
from gateway.observability.metrics import classify_outcome
from gateway.server.workers.metrics import Added, Figures, sum_metrics
from gateway.simulator import Service
from gateway.storage.restore_marks import NONE, flag_restored
from mappings import OPERATIONS, UNLISTED
from mappings.current import ENDPOINTS
from mappings.effects import Vocabulary
from tests.house import KEY, House, import_lines
from tests.operating import Post, eventually, lose_a_batch, post, says
from tests.payday import make_batch, make_recipient, open_town, payment_ids
from tests.scrape import Scrape, more, scrape_of, scraped
from tests.sockets import heard
from tests.valley import NAME, open_valley

REQUESTS = "payout_gateway_requests_total"
CALLS = "payout_gateway_upstream_calls_total"
LEGACY_CALLS = "payout_gateway_legacy_service_calls_total"
DURATIONS = "payout_gateway_request_duration_seconds_count"
UPSTREAM_DURATIONS = "payout_gateway_upstream_request_duration_seconds_count"
OVERHEADS = "payout_gateway_overhead_seconds_count"

KNOWN = {
    "api": {"legacy", "signed"},
    "operation": {"none", "signed", *(one.name for one in (*OPERATIONS, *UNLISTED))},
    "environment": {"", "live", "sandbox"},
    "status": {"2xx", "4xx", "5xx"},
    "endpoint": {"other", *(f"{one.method} {one.path}" for one in ENDPOINTS)},
    "outcome": {
        *("success", "refused", "refused_by_service", "rate_limited", "brownout", "in_doubt"),
        *(
            "unreachable",
            "client_disconnected",
            "database_unavailable",
            "internal_error",
            "blocked",
            "overloaded",
            "failed",
        ),
        *("2xx", "3xx", "4xx", "5xx", "cancelled"),
        *("written", "dropped", "too_large", "failed"),
    },
}
"""Every value that a label may have."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the state is read for every scrape."""
    monkeypatch.setattr("gateway.operator.metrics_page.MAX_AGE_SECONDS", 0)


async def figures(house: House) -> Scrape:
    return await scraped(house.session, house.running.admin_url)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Post]:
    async with post(tmp_path) as found:
        yield found


async def counted(here: Post, method: str, path: str, **asked: object) -> dict[str, str]:
    """The labels of the one series that a request was counted in."""
    before = await figures(here.house)
    await here.house.ask(method, path, **asked)  # type: ignore[arg-type]
    after = await figures(here.house)
    was = {tuple(sorted(one.labels.items())): one.value for one in before.of(REQUESTS)}
    (found,) = [
        one
        for one in after.of(REQUESTS)
        if one.value != was.get(tuple(sorted(one.labels.items())), 0)
    ]
    return dict(found.labels)


# What came of a request


async def test_an_answered_request_is_counted_with_its_calls_and_its_times(here: Post) -> None:
    before = await figures(here.house)
    await here.house.ask("GET", "/v1/recipients")
    after = await figures(here.house)
    of_it = {"api": "legacy", "operation": "list_recipients"}
    told = {"environment": "sandbox", "status": "2xx", "outcome": "success"}
    assert more(after, before, REQUESTS, **of_it, **told) == 1
    call = {"environment": "sandbox", "endpoint": "GET /recipients", "outcome": "2xx"}
    assert more(after, before, CALLS, **call) == 1
    for durations in (DURATIONS, UPSTREAM_DURATIONS, OVERHEADS):
        assert more(after, before, durations, **of_it, environment="sandbox") == 1


async def test_what_is_answered_here_was_at_no_service(here: Post) -> None:
    before = await figures(here.house)
    await here.house.ask("GET", "/v1/geography/countries/DE")
    after = await figures(here.house)
    assert more(after, before, DURATIONS, operation="read_country") == 1
    assert more(after, before, UPSTREAM_DURATIONS, operation="read_country") == 0


async def test_what_the_legacy_service_is_asked_is_counted_apart(tmp_path: Path) -> None:
    async with open_valley(tmp_path, apart=True, seconds=0.5) as here:
        await here.switch("forward")
        before = await figures(here.house)
        of_it = {"environment": "sandbox", "operation": "read_recipient"}
        path = "/v1/recipients/R-1234567890123456"
        assert (await here.house.ask("GET", path)).status == 404
        here.breaks_legacy("GET", path, close="after")
        assert (await here.house.ask("GET", path)).status == 500
        here.breaks_legacy("POST", "/v1/recipients", close="after")
        body = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@b.example"}
        assert (await here.house.ask("POST", "/v1/recipients", body)).status == 500
        after = await figures(here.house)
    for outcome_of_it in ("4xx", "unreachable"):
        assert more(after, before, LEGACY_CALLS, **of_it, outcome=outcome_of_it) == 1
    assert more(after, before, LEGACY_CALLS, operation="create_recipient", outcome="in_doubt") == 1
    assert more(after, before, LEGACY_CALLS) == 3
    assert more(after, before, CALLS) == 0


async def test_compared_reads_are_counted_at_both_services(tmp_path: Path) -> None:
    async with open_valley(tmp_path) as here:
        await here.says("modes", "set", "--key", NAME, "compare", "--yes")
        before = await figures(here.house)

        async def is_asked() -> bool:
            await here.house.ask("GET", "/v1/profile/balances")
            found = await figures(here.house)
            return more(found, before, LEGACY_CALLS, operation="read_balances", outcome="2xx") > 0

        await eventually(is_asked)
        assert more(await figures(here.house), before, CALLS, endpoint="GET /balance") > 0


async def test_refusals_say_whose_they_are(here: Post) -> None:
    nowhere = await counted(here, "GET", "/v1/nowhere")
    assert (nowhere["operation"], nowhere["outcome"], nowhere["status"]) == (
        "none",
        "refused",
        "4xx",
    )
    nobody = await counted(here, "GET", "/v1/recipients", headers={"X-API-Key": "nobody"})
    assert (nobody["outcome"], nobody["environment"]) == ("refused", "")
    missing = await counted(here, "GET", "/v1/recipients/R-none")
    assert missing["outcome"] == "refused_by_service"


async def test_over_the_limit_and_in_a_brownout(here: Post) -> None:
    key = await here.house.import_key(
        api_key="one-request-key", merchant="poor", access_key="POOR", requests_per_hour=1
    )
    poor = {"X-API-Key": key}
    await here.house.ask("GET", "/v1/recipients", headers=poor)
    assert (await counted(here, "GET", "/v1/recipients", headers=poor))["outcome"] == "rate_limited"
    await says(here.folder, "brownout", "schedule", "--until", "2999-01-01T00:00Z")
    async with asyncio.timeout(30):
        while (await here.house.ask("GET", "/v1/profile/balances")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (await counted(here, "GET", "/v1/profile/balances"))["outcome"] == "brownout"


async def test_of_a_lost_write_the_exemplar_finds_its_line_in_the_log(here: Post) -> None:
    recipient = await make_recipient(here.house)
    before = await figures(here.house)
    await lose_a_batch(here, recipient)
    after = await figures(here.house)
    lost = {"operation": "create_batch", "outcome": "in_doubt", "status": "5xx"}
    assert more(after, before, REQUESTS, **lost) == 1
    assert more(after, before, CALLS, endpoint="POST /batches", outcome="in_doubt") == 1
    (counted_in,) = after.of(REQUESTS, **lost, environment="sandbox")
    assert counted_in.exemplar is not None
    lines = (here.folder / "log").read_text("utf-8").splitlines()
    (line,) = [one for one in lines if str(counted_in.exemplar.labels["request_id"]) in one]
    assert "create_batch" in line


@pytest.mark.parametrize(
    ("status", "told", "said"),
    [
        (200, {}, "success"),
        (499, {}, "client_disconnected"),
        (500, {"error.type": "database_unavailable"}, "database_unavailable"),
        (500, {"error.type": "KeyError", "exception.stacktrace": ""}, "internal_error"),
        (500, {"error.type": "unreachable"}, "unreachable"),
        (500, {"error.type": "blocked"}, "blocked"),
        (500, {"error.type": "overloaded"}, "overloaded"),
        (500, {}, "failed"),
    ],
)
def test_every_other_outcome_has_its_word(status: int, told: dict[str, object], said: str) -> None:
    assert classify_outcome(status, told) == said


async def test_what_is_no_http_is_counted(here: Post) -> None:
    before = await figures(here.house)
    await heard(here.house.running.port, b"NONSENSE\r\n\r\n")
    after = await figures(here.house)
    assert more(after, before, "payout_gateway_invalid_http_requests_total") == 1


async def test_requests_in_flight_are_told_while_they_are(here: Post) -> None:
    here.breaks("GET", "/v1/balance", delay=0.5)
    before = await figures(here.house)
    asking = asyncio.ensure_future(here.house.ask("GET", "/v1/profile/balances"))
    await here_arrives(here)
    during = await figures(here.house)
    assert more(during, before, "payout_gateway_requests_in_flight") == 1
    await asking
    assert more(await figures(here.house), before, "payout_gateway_requests_in_flight") == 0


async def here_arrives(here: Post) -> None:
    async with asyncio.timeout(30):
        while metrics.in_flight._value.get() < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# How things stand


async def test_an_unsettled_write_and_its_age_are_told(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        early = await figures(here.house)
        await here.lapse()
        found = await figures(here.house)
    assert early.sum("payout_gateway_in_doubt_writes") == 0
    assert found.sum("payout_gateway_in_doubt_writes") == 1
    assert found.sum("payout_gateway_in_doubt_writes_oldest_age_seconds") >= 60
    assert found.sum("payout_gateway_open_write_requests") >= 1


async def test_abandoned_batches_and_stops_are_told(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "10.00")
        assert (await here.house.ask("DELETE", f"/v1/batches/{batch}")).status == 200
        await says(tmp_path, "freeze", "--all")
        found = await figures(here.house)
        listed = await here.told("batches", "abandoned")
    assert found.sum("payout_gateway_abandoned_batches") == len(listed["batches"]) == 1
    assert found.sum("payout_gateway_write_freezes") == 1


async def test_a_state_that_was_put_back_is_told(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        assert (await figures(here.house)).sum("payout_gateway_database_restored") == 0
    async with post(tmp_path) as here:
        async with here.store() as store:
            await flag_restored(store, NONE)
        assert (await figures(here.house)).sum("payout_gateway_database_restored") == 1


async def test_keys_clock_and_what_runs_are_told(here: Post) -> None:
    await here.house.import_key(api_key="a-second-key-of-it", name="second")
    found = await figures(here.house)
    assert found.sum("payout_gateway_api_keys", environment="sandbox") == 2
    assert abs(found.sum("payout_gateway_clock_offset_seconds", environment="sandbox")) < 5
    assert found.sum("payout_gateway_database_up") == 1
    assert found.sum("payout_gateway_rate_limiter_backend_up") == 1
    (build,) = found.of("payout_gateway_build_info")
    assert build.labels["version"]
    assert found.sum("process_resident_memory_bytes") > 0


async def test_the_index_of_recipients_is_told_and_what_it_costs(here: Post) -> None:
    here.service.seed_recipients(300, seed=7)
    there = [one for one in here.service.world().recipients.values() if not one.archived]
    before = await figures(here.house)
    for order in ("city", "country", "id"):
        assert (await here.house.ask("GET", f"/v1/recipients?orderBy={order}")).status == 200
    after = await figures(here.house)
    its = {"environment": "sandbox"}
    assert after.sum("payout_gateway_recipient_caches", **its) == 1
    assert after.sum("payout_gateway_recipient_cache_entries", **its) == len(there)
    assert 0 < after.sum("payout_gateway_recipient_cache_oldest_age_seconds", **its) < 3600
    readings = "payout_gateway_recipient_cache_refreshes_total"
    assert more(after, before, readings, **its, outcome="success") == 1
    assert more(after, before, "payout_gateway_recipient_cache_upstream_calls_count", **its) == 3
    few = more(
        after, before, "payout_gateway_recipient_cache_upstream_calls_bucket", **its, le="3.0"
    )
    assert few == 2, "all but the first, which waited for the reading"


async def test_older_scrapers_get_the_older_form(here: Post) -> None:
    async with here.house.session.get(f"{here.house.running.admin_url}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "# TYPE payout_gateway_requests_total counter" in await answer.text()


# Labels


async def test_neither_keys_nor_ids_nor_paths_add_a_series(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        lines = [{**KEY, "api_key": f"key-number-{n:05}", "name": f"n{n}"} for n in range(10_000)]
        await import_lines(house.settings, lines)

        async def ask(number: int) -> None:
            mine = {"X-API-Key": f"key-number-{number:05}"}
            for path in (
                "/v1/recipients?page=1",
                f"/v1/recipients/R-{number}",
                f"/v1/{number}/x",
                f"/v1/geography/countries/X{chr(65 + number % 26)}",
            ):
                await house.ask("GET", path, headers=mine | {"X-Request-Id": f"r-{number}"})
            mine["X-API-Key"] = f"unknown-{number}"
            await house.ask("PURGE", f"/v1/recipients/{number}", headers=mine)

        for number in (0, 1):  # a country that is none, and one that is
            await ask(number)
        before = await figures(house)
        await asyncio.gather(*(ask(number) for number in range(2, 200)))
        after = await figures(house)
    assert after.sum("payout_gateway_api_keys", environment="sandbox") == 10_001
    assert more(after, before, REQUESTS) == 198 * 5
    assert after.series() - before.series() == set()


async def test_labels_have_values_of_ours_alone(here: Post) -> None:
    recipient = await make_recipient(here.house)
    batch = await make_batch(here.house, recipient, "10.00")
    await payment_ids(here.house, batch)
    for one in (await figures(here.house)).samples:
        for name in one.labels.keys() & KNOWN.keys():
            assert one.labels[name] in KNOWN[name], one


def test_the_endpoint_of_a_passed_request_is_one_that_the_document_lists() -> None:
    plain = PathTemplates(Vocabulary())
    assert plain.find_endpoint_path("GET", "/v1/recipients/R-1?x=1") == "/recipients/{id}"
    assert plain.find_endpoint_path("GET", "/v1/batch/B-1/summary") == "/batch/{id}/summary"
    assert plain.find_endpoint_path("PURGE", "/v1/recipients/R-1") == ""
    assert plain.find_endpoint_path("GET", "/v1/profile/anything") == ""
    own = PathTemplates(
        Vocabulary(current_summary_path="/v1/sums/{id}.x", current_balance_path="/v1/b")
    )
    assert own.find_endpoint_path("GET", "/v1/sums/B-1.x") == "/batch/{id}/summary"
    assert own.find_endpoint_path("GET", "/v1/sums/B-1yx") == ""
    assert own.find_endpoint_path("GET", "/v1/b") == "/balance"
    assert own.find_endpoint_path("GET", "/v1/balance") == ""


# Several workers

OF_ONE = """\
# TYPE payout_gateway_requests counter
payout_gateway_requests_total{api="legacy"} 3 # {request_id="one"} 1.0 100.0
# TYPE payout_gateway_request_duration_seconds histogram
payout_gateway_request_duration_seconds_bucket{le="1.0"} 2
payout_gateway_request_duration_seconds_bucket{le="+Inf"} 3
payout_gateway_request_duration_seconds_count 3
payout_gateway_request_duration_seconds_sum 2.5
# TYPE payout_gateway_database_up gauge
payout_gateway_database_up 1
# TYPE payout_gateway_in_doubt_writes gauge
payout_gateway_in_doubt_writes 4
# TYPE payout_gateway_requests_in_flight gauge
payout_gateway_requests_in_flight 2
# TYPE payout_gateway_recipient_caches gauge
payout_gateway_recipient_caches 1
# TYPE payout_gateway_recipient_cache_entries gauge
payout_gateway_recipient_cache_entries 400
# TYPE payout_gateway_recipient_cache_oldest_age_seconds gauge
payout_gateway_recipient_cache_oldest_age_seconds 20
# TYPE payout_gateway_clock_offset_seconds gauge
payout_gateway_clock_offset_seconds 1
# EOF
"""
OF_OTHER = """\
# TYPE payout_gateway_requests counter
payout_gateway_requests_total{api="legacy"} 4 # {request_id="two"} 1.0 200.0
payout_gateway_requests_total{api="signed"} 1
# TYPE payout_gateway_request_duration_seconds histogram
payout_gateway_request_duration_seconds_bucket{le="1.0"} 1
payout_gateway_request_duration_seconds_bucket{le="+Inf"} 1
payout_gateway_request_duration_seconds_count 1
payout_gateway_request_duration_seconds_sum 0.5
# TYPE payout_gateway_database_up gauge
payout_gateway_database_up 0
# TYPE payout_gateway_in_doubt_writes gauge
payout_gateway_in_doubt_writes NaN
# TYPE payout_gateway_requests_in_flight gauge
payout_gateway_requests_in_flight 1
# TYPE payout_gateway_recipient_caches gauge
payout_gateway_recipient_caches 2
# TYPE payout_gateway_recipient_cache_entries gauge
payout_gateway_recipient_cache_entries 900
# TYPE payout_gateway_recipient_cache_oldest_age_seconds gauge
payout_gateway_recipient_cache_oldest_age_seconds 50
# TYPE payout_gateway_clock_offset_seconds gauge
payout_gateway_clock_offset_seconds -7
# EOF
"""


class Crew:
    """Workers whose pages are what they are said to be."""

    def __init__(self, **pages: str | None) -> None:
        self.pages = {Path(name): page for name, page in pages.items()}
        self.added = Added(lambda: list(self.pages), self.ask)

    async def ask(self, workers: object) -> list[str | None]:
        return [self.pages[one] for one in workers]  # type: ignore[attr-defined]

    async def scrape(self) -> Scrape:
        body, _ = await self.added.page("application/openmetrics-text; version=1.0.0")
        return scrape_of(body.decode())


async def test_workers_are_added_up_as_each_figure_is_meant() -> None:
    found = await Crew(one=OF_ONE, other=OF_OTHER).scrape()
    assert found.sum(REQUESTS, api="legacy") == 7
    assert found.sum(REQUESTS, api="signed") == 1
    assert found.sum("payout_gateway_request_duration_seconds_bucket", le="1.0") == 3
    assert found.sum("payout_gateway_request_duration_seconds_sum") == 3
    assert found.sum("payout_gateway_database_up") == 0, "one that cannot use it is one too many"
    assert found.sum("payout_gateway_in_doubt_writes") == 4, "of one state, told by whoever knows"
    assert found.sum("payout_gateway_requests_in_flight") == 3
    assert found.sum("payout_gateway_clock_offset_seconds") == -7
    assert found.sum("payout_gateway_recipient_caches") == 3, "each has its own"
    assert found.sum("payout_gateway_recipient_cache_entries") == 1300
    assert found.sum("payout_gateway_recipient_cache_oldest_age_seconds") == 50
    assert found.sum("payout_gateway_workers") == 2
    (legacy,) = found.of(REQUESTS, api="legacy")
    assert legacy.exemplar is not None
    assert legacy.exemplar.labels == {"request_id": "two"}


async def test_a_counter_never_goes_back_when_workers_end_or_do_not_answer() -> None:
    crew = Crew(one=OF_ONE, other=OF_OTHER)
    await crew.scrape()
    crew.pages[Path("one")] = None
    assert (await crew.scrape()).sum(REQUESTS) == 8, "it only does not answer just now"
    del crew.pages[Path("one")]
    crew.pages[Path("third")] = OF_OTHER
    for _ in range(2):
        found = await crew.scrape()
        assert found.sum(REQUESTS) == 3 + 5 + 5
        assert found.sum("payout_gateway_request_duration_seconds_count") == 3 + 1 + 1
        assert found.sum("payout_gateway_requests_in_flight") == 2, "who is gone has none"


def test_nothing_is_added_to_nothing() -> None:
    assert list(Figures(sum_metrics([])).collect()) == []
