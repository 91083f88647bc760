"""Metrics: every kind of outcome, and labels that clients cannot multiply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.http.request_paths import PathTemplates
from gateway.observability import metrics
from gateway.observability.metrics import classify_outcome
from gateway.storage.restore_detection import NO_MARK, set_restored_flag
from mappings import OPERATIONS, UNLISTED
from mappings.current import ENDPOINTS
from mappings.effects import Vocabulary
from tests.legacy_and_current import KEY_NAME, open_gateway_between
from tests.metrics_scrape import Scrape, fetch_metrics, measure_increase
from tests.operator_commands import (
    OperatedGateway,
    lose_batch_create,
    open_operated_gateway,
    run_command,
    wait_until_async,
)
from tests.payouts import create_batch, create_recipient, load_payment_ids, open_gateway_and_service
from tests.running_gateway import KEY, GatewayUnderTest, import_api_keys
from tests.simulator import Service
from tests.sockets import exchange

REQUESTS_METRIC = "payout_gateway_requests_total"
CALLS_METRIC = "payout_gateway_upstream_calls_total"
LEGACY_CALLS_METRIC = "payout_gateway_legacy_service_calls_total"
DURATION_COUNT_METRIC = "payout_gateway_request_duration_seconds_count"
UPSTREAM_DURATION_COUNT_METRIC = "payout_gateway_upstream_request_duration_seconds_count"
OVERHEAD_COUNT_METRIC = "payout_gateway_overhead_seconds_count"

REQUEST_OUTCOMES = {
    *("success", "refused", "refused_by_service", "rate_limited", "brownout", "in_doubt"),
    *("unreachable", "client_disconnected", "database_unavailable", "internal_error", "blocked"),
    *("overloaded", "service_error", "failed"),
}

KNOWN_LABEL_VALUES = {
    "api": {"legacy", "signed"},
    "operation": {"none", "signed", *(one.name for one in (*OPERATIONS, *UNLISTED))},
    "environment": {"", "live", "sandbox"},
    "status": {"2xx", "3xx", "4xx", "5xx"},
    "endpoint": {"other", *(f"{one.method} {one.path}" for one in ENDPOINTS)},
    "outcome": {
        *REQUEST_OUTCOMES,
        *("2xx", "3xx", "4xx", "5xx", "unreadable", "cancelled"),
        *("written", "dropped", "too_large", "failed"),
    },
}
"""Every value that a label may have."""


@pytest.fixture(autouse=True)
def read_gauges_for_every_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every scrape read the gauges from the database."""
    monkeypatch.setattr("gateway.server.metrics_page.MAX_AGE_SECONDS", 0)


async def scrape_gateway(gateway: GatewayUnderTest) -> Scrape:
    return await fetch_metrics(gateway.session, gateway.running.admin_url)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[OperatedGateway]:
    async with open_operated_gateway(tmp_path) as setup:
        yield setup


async def find_counted_labels(
    setup: OperatedGateway, method: str, path: str, **options: object
) -> dict[str, str]:
    """Sends a request; returns the labels of the series that counted it."""
    scrape_before = await scrape_gateway(setup.gateway)
    await setup.gateway.request(method, path, **options)  # type: ignore[arg-type]
    scrape_after = await scrape_gateway(setup.gateway)
    values_before = {
        tuple(sorted(entry.labels.items())): entry.value
        for entry in scrape_before.get_value(REQUESTS_METRIC)
    }
    (labels,) = [
        entry
        for entry in scrape_after.get_value(REQUESTS_METRIC)
        if entry.value != values_before.get(tuple(sorted(entry.labels.items())), 0)
    ]
    return dict(labels.labels)


# Calls, connections and the process


async def test_calls_retries_and_latencies_are_reported(setup: OperatedGateway) -> None:
    await setup.gateway.request("GET", "/v1/recipients")
    scrape_before = await scrape_gateway(setup.gateway)
    setup.add_fault("GET", "/v1/recipients", close="before")
    assert (await setup.gateway.request("GET", "/v1/recipients")).status == 200
    await create_recipient(setup.gateway)
    await asyncio.sleep(0.3)  # the event loop is measured four times a second
    scrape_after = await scrape_gateway(setup.gateway)

    def measure(name: str, **labels: str) -> float:
        return measure_increase(scrape_after, scrape_before, f"payout_gateway_{name}", **labels)

    assert measure("upstream_retries_total", environment="sandbox") == 1
    call = {"environment": "sandbox", "endpoint": "GET /recipients"}
    assert measure("upstream_call_duration_seconds_count", **call) == 1, "with its retry"
    assert measure("database_duration_seconds_count", kind="write") > 0
    assert measure("event_loop_lag_seconds_count") > 0
    connections = "payout_gateway_upstream_connections"
    assert scrape_after.sum(connections, environment="sandbox", state="idle") >= 1
    assert scrape_after.sum(connections, environment="sandbox", state="active") == 0


async def test_authentication_failures_are_counted_by_interface(setup: OperatedGateway) -> None:
    scrape_before = await scrape_gateway(setup.gateway)
    url = f"{setup.gateway.running.url}/v1/recipients"
    for headers, status in (
        ({"X-API-Key": "nobody-s"}, 403),
        ({"Authorization": "svcsign nonsense"}, 401),
    ):
        async with setup.gateway.session.get(url, headers=headers) as response:
            assert response.status == status
    await setup.gateway.request("GET", "/v1/recipients")
    scrape_after = await scrape_gateway(setup.gateway)
    for api in ("legacy", "signed"):
        name = "payout_gateway_authentication_failures_total"
        assert measure_increase(scrape_after, scrape_before, name, api=api) == 1
    denied = {"api": "legacy", "status": "4xx", "code": "403"}
    assert measure_increase(scrape_after, scrape_before, REQUESTS_METRIC, **denied) == 1


# Outcomes of requests


async def test_answered_request_is_counted_with_calls_and_durations(setup: OperatedGateway) -> None:
    scrape_before = await scrape_gateway(setup.gateway)
    await setup.gateway.request("GET", "/v1/recipients")
    scrape_after = await scrape_gateway(setup.gateway)
    of_it = {"api": "legacy", "operation": "list_recipients"}
    labels = {"environment": "sandbox", "status": "2xx", "outcome": "success"}
    assert measure_increase(scrape_after, scrape_before, REQUESTS_METRIC, **of_it, **labels) == 1
    call = {"environment": "sandbox", "endpoint": "GET /recipients", "outcome": "2xx"}
    assert measure_increase(scrape_after, scrape_before, CALLS_METRIC, **call) == 1
    for durations in (DURATION_COUNT_METRIC, UPSTREAM_DURATION_COUNT_METRIC, OVERHEAD_COUNT_METRIC):
        assert (
            measure_increase(scrape_after, scrape_before, durations, **of_it, environment="sandbox")
            == 1
        )


async def test_locally_answered_request_counts_no_upstream_call(setup: OperatedGateway) -> None:
    scrape_before = await scrape_gateway(setup.gateway)
    await setup.gateway.request("GET", "/v1/geography/countries/DE")
    scrape_after = await scrape_gateway(setup.gateway)
    assert (
        measure_increase(
            scrape_after, scrape_before, DURATION_COUNT_METRIC, operation="read_country"
        )
        == 1
    )
    assert (
        measure_increase(
            scrape_after, scrape_before, UPSTREAM_DURATION_COUNT_METRIC, operation="read_country"
        )
        == 0
    )


async def test_legacy_service_calls_are_counted_separately(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True, seconds=0.5) as setup:
        await setup.set_mode("forward")
        scrape_before = await scrape_gateway(setup.gateway)
        of_it = {"environment": "sandbox", "operation": "read_recipient"}
        path = "/v1/recipients/R-1234567890123456"
        assert (await setup.gateway.request("GET", path)).status == 404
        setup.add_legacy_fault("GET", path, close="after")
        assert (await setup.gateway.request("GET", path)).status == 500
        setup.add_legacy_fault("POST", "/v1/recipients", close="after")
        body = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@b.example"}
        assert (await setup.gateway.request("POST", "/v1/recipients", body)).status == 500
        scrape_after = await scrape_gateway(setup.gateway)
    for outcome_of_it in ("4xx", "unreachable"):
        assert (
            measure_increase(
                scrape_after, scrape_before, LEGACY_CALLS_METRIC, **of_it, outcome=outcome_of_it
            )
            == 1
        )
    assert (
        measure_increase(
            scrape_after,
            scrape_before,
            LEGACY_CALLS_METRIC,
            operation="create_recipient",
            outcome="in_doubt",
        )
        == 1
    )
    assert measure_increase(scrape_after, scrape_before, LEGACY_CALLS_METRIC) == 3
    assert measure_increase(scrape_after, scrape_before, CALLS_METRIC) == 0


async def test_compared_reads_are_counted_at_both_services(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path) as setup:
        await setup.run_command("modes", "set", "--key", KEY_NAME, "compare", "--yes")
        scrape_before = await scrape_gateway(setup.gateway)

        async def are_both_asked() -> bool:
            await setup.gateway.request("GET", "/v1/profile/balances")
            scrapes = await scrape_gateway(setup.gateway), scrape_before
            legacy_labels = {"operation": "read_balances", "outcome": "2xx"}
            # The other service is asked after the response.
            return (
                measure_increase(*scrapes, LEGACY_CALLS_METRIC, **legacy_labels) > 0
                and measure_increase(*scrapes, CALLS_METRIC, endpoint="GET /balance") > 0
            )

        await wait_until_async(are_both_asked)


async def test_refusals_are_counted_by_origin(setup: OperatedGateway) -> None:
    nowhere = await find_counted_labels(setup, "GET", "/v1/nowhere")
    assert (nowhere["operation"], nowhere["outcome"], nowhere["status"]) == (
        "none",
        "refused",
        "4xx",
    )
    nobody = await find_counted_labels(
        setup, "GET", "/v1/recipients", headers={"X-API-Key": "nobody"}
    )
    assert (nobody["outcome"], nobody["environment"]) == ("refused", "")
    not_found_labels = await find_counted_labels(setup, "GET", "/v1/recipients/R-none")
    assert not_found_labels["outcome"] == "refused_by_service"


async def test_rate_limited_and_brownout_requests_are_counted(setup: OperatedGateway) -> None:
    key = await setup.gateway.import_key(
        api_key="one-request-key", merchant="poor", access_key="POOR", requests_per_hour=1
    )
    headers = {"X-API-Key": key}
    await setup.gateway.request("GET", "/v1/recipients", headers=headers)
    assert (await find_counted_labels(setup, "GET", "/v1/recipients", headers=headers))[
        "outcome"
    ] == "rate_limited"
    await run_command(setup.folder, "brownout", "schedule", "--until", "2999-01-01T00:00Z")
    async with asyncio.timeout(30):
        while (await setup.gateway.request("GET", "/v1/profile/balances")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (await find_counted_labels(setup, "GET", "/v1/profile/balances"))[
        "outcome"
    ] == "brownout"


async def test_write_in_doubt_is_counted(setup: OperatedGateway) -> None:
    recipient = await create_recipient(setup.gateway)
    scrape_before = await scrape_gateway(setup.gateway)
    await lose_batch_create(setup, recipient)
    scrape_after = await scrape_gateway(setup.gateway)
    labels = {"operation": "create_batch", "outcome": "in_doubt", "status": "5xx"}
    assert measure_increase(scrape_after, scrape_before, REQUESTS_METRIC, **labels) == 1
    assert (
        measure_increase(
            scrape_after, scrape_before, CALLS_METRIC, endpoint="POST /batches", outcome="in_doubt"
        )
        == 1
    )


@pytest.mark.parametrize(
    ("status", "flags", "expected"),
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
def test_outcome_is_classified(status: int, flags: dict[str, object], expected: str) -> None:
    assert classify_outcome(status, flags) == expected


async def test_invalid_http_request_is_counted(setup: OperatedGateway) -> None:
    scrape_before = await scrape_gateway(setup.gateway)
    await exchange(setup.gateway.running.port, b"NONSENSE\r\n\r\n")
    scrape_after = await scrape_gateway(setup.gateway)
    assert (
        measure_increase(scrape_after, scrape_before, "payout_gateway_invalid_http_requests_total")
        == 1
    )


async def test_requests_in_flight_are_reported(setup: OperatedGateway) -> None:
    setup.add_fault("GET", "/v1/balance", delay=0.5)
    scrape_before = await scrape_gateway(setup.gateway)
    pending_response = asyncio.ensure_future(setup.gateway.request("GET", "/v1/profile/balances"))
    await wait_until_in_flight(setup)
    scrape_during = await scrape_gateway(setup.gateway)
    assert measure_increase(scrape_during, scrape_before, "payout_gateway_requests_in_flight") == 1
    await pending_response
    assert (
        measure_increase(
            await scrape_gateway(setup.gateway), scrape_before, "payout_gateway_requests_in_flight"
        )
        == 0
    )


async def wait_until_in_flight(setup: OperatedGateway) -> None:
    async with asyncio.timeout(30):
        while not any(metrics.traffic.running_requests.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Gauges of the database


async def test_write_in_doubt_and_its_age_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.writes.reconciler.SWEEP_SECONDS", 3600.0)  # it stays in doubt
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        await lose_batch_create(setup)
        early_scrape = await scrape_gateway(setup.gateway)
        await setup.age_sent_writes()
        scrape = await scrape_gateway(setup.gateway)
    assert early_scrape.sum("payout_gateway_in_doubt_writes") == 0
    assert scrape.sum("payout_gateway_in_doubt_writes") == 1
    assert scrape.sum("payout_gateway_in_doubt_writes_oldest_age_seconds") >= 60
    assert scrape.sum("payout_gateway_open_write_requests") >= 1


async def test_superseded_batches_and_freezes_are_reported(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        assert (await setup.gateway.request("DELETE", f"/v1/batches/{batch}")).status == 200
        await run_command(tmp_path, "freeze", "--all")
        scrape = await scrape_gateway(setup.gateway)
        abandoned_batches = await setup.run_json_command("batches", "abandoned")
    assert scrape.sum("payout_gateway_abandoned_batches") == len(abandoned_batches["batches"]) == 1
    assert scrape.sum("payout_gateway_write_freezes") == 1


async def test_restored_database_is_reported(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        assert (await scrape_gateway(setup.gateway)).sum("payout_gateway_database_restored") == 0
    async with open_operated_gateway(tmp_path) as setup:
        async with setup.open_store() as store:
            await set_restored_flag(store, NO_MARK)
        assert (await scrape_gateway(setup.gateway)).sum("payout_gateway_database_restored") == 1


async def test_keys_clock_offset_and_build_are_reported(setup: OperatedGateway) -> None:
    await setup.gateway.import_key(api_key="a-second-key-of-it", name="second")
    scrape = await scrape_gateway(setup.gateway)
    assert scrape.sum("payout_gateway_api_keys", environment="sandbox") == 2
    assert abs(scrape.sum("payout_gateway_clock_offset_seconds", environment="sandbox")) < 5
    assert scrape.sum("payout_gateway_database_up") == 1
    assert scrape.sum("payout_gateway_rate_limiter_backend_up") == 1
    (build,) = scrape.get_value("payout_gateway_build_info")
    assert build.labels["version"]
    assert scrape.sum("process_resident_memory_bytes") > 0


async def test_recipient_index_and_its_calls_are_reported(setup: OperatedGateway) -> None:
    setup.service.seed_recipients(300, seed=7)
    index_metrics = [
        recipient
        for recipient in setup.service.find_or_create_tenant().recipients.values()
        if not recipient.is_archived
    ]
    scrape_before = await scrape_gateway(setup.gateway)
    for order in ("city", "country", "id"):
        assert (await setup.gateway.request("GET", f"/v1/recipients?orderBy={order}")).status == 200
    scrape_after = await scrape_gateway(setup.gateway)
    labels = {"environment": "sandbox"}
    assert scrape_after.sum("payout_gateway_recipient_caches", **labels) == 1
    assert scrape_after.sum("payout_gateway_recipient_cache_entries", **labels) == len(
        index_metrics
    )
    refreshes_metric = "payout_gateway_recipient_cache_refreshes_total"
    assert (
        measure_increase(scrape_after, scrape_before, refreshes_metric, **labels, outcome="success")
        == 1
    )
    assert (
        measure_increase(
            scrape_after,
            scrape_before,
            "payout_gateway_recipient_cache_upstream_calls_count",
            **labels,
        )
        == 3
    )
    call_increase = measure_increase(
        scrape_after,
        scrape_before,
        "payout_gateway_recipient_cache_upstream_calls_bucket",
        **labels,
        le="3.0",
    )
    assert call_increase == 2, "all but the first, which waited for the reading"


async def test_prometheus_text_format_is_the_default(setup: OperatedGateway) -> None:
    async with setup.gateway.session.get(f"{setup.gateway.running.admin_url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "# TYPE payout_gateway_requests_total counter" in await response.text()


# Labels


async def test_keys_ids_and_paths_do_not_add_series(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        lines = [{**KEY, "api_key": f"key-number-{n:05}", "name": f"n{n}"} for n in range(10_000)]
        await import_api_keys(gateway.settings, lines)

        async def send_requests(number: int) -> None:
            headers = {"X-API-Key": f"key-number-{number:05}"}
            for path in (
                "/v1/recipients?page=1",
                f"/v1/recipients/R-{number}",
                f"/v1/{number}/x",
                f"/v1/geography/countries/X{chr(65 + number % 26)}",
            ):
                await gateway.request(
                    "GET", path, headers=headers | {"X-Request-Id": f"r-{number}"}
                )
            headers["X-API-Key"] = f"unknown-{number}"
            await gateway.request("PURGE", f"/v1/recipients/{number}", headers=headers)

        for number in (0, 1):  # one unknown country and one known
            await send_requests(number)
        scrape_before = await scrape_gateway(gateway)
        await asyncio.gather(*(send_requests(number) for number in range(2, 200)))
        scrape_after = await scrape_gateway(gateway)
    assert scrape_after.sum("payout_gateway_api_keys", environment="sandbox") == 10_001
    assert measure_increase(scrape_after, scrape_before, REQUESTS_METRIC) == 198 * 5
    assert scrape_after.series() - scrape_before.series() == set()


async def test_labels_have_known_values(setup: OperatedGateway) -> None:
    recipient = await create_recipient(setup.gateway)
    batch = await create_batch(setup.gateway, recipient, "10.00")
    await load_payment_ids(setup.gateway, batch)
    for sample in (await scrape_gateway(setup.gateway)).samples:
        for name in sample.labels.keys() & KNOWN_LABEL_VALUES.keys():
            assert sample.labels[name] in KNOWN_LABEL_VALUES[name], sample


def test_endpoint_label_is_a_documented_path() -> None:
    default_templates = PathTemplates(Vocabulary())
    assert (
        default_templates.find_endpoint_path("GET", "/v1/recipients/R-1?x=1") == "/recipients/{id}"
    )
    assert (
        default_templates.find_endpoint_path("GET", "/v1/batch/B-1/summary")
        == "/batch/{id}/summary"
    )
    assert default_templates.find_endpoint_path("PURGE", "/v1/recipients/R-1") == ""
    assert default_templates.find_endpoint_path("GET", "/v1/profile/anything") == ""
    configured_templates = PathTemplates(
        Vocabulary(current_summary_path="/v1/sums/{id}.x", current_balance_path="/v1/b")
    )
    assert configured_templates.find_endpoint_path("GET", "/v1/sums/B-1.x") == "/batch/{id}/summary"
    assert configured_templates.find_endpoint_path("GET", "/v1/sums/B-1yx") == ""
    assert configured_templates.find_endpoint_path("GET", "/v1/b") == "/balance"
    assert configured_templates.find_endpoint_path("GET", "/v1/balance") == ""
