"""Contents of the console's pages for a gateway with history."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner
from sqlalchemy import text

from gateway.auth.key_rows import load_listed_keys, revoke_key
from gateway.cli import gateway
from gateway.storage import open_store
from gateway.storage.request_counts import (
    MINUTE,
    CountKey,
    RequestCounts,
    add_request_counts,
    compute_span_start,
)
from gateway.storage.restore_detection import NO_MARK, set_restored_flag
from tests.console import (
    OTHER_MERCHANTS,
    Answer,
    ConsoleClient,
    ConsoleUnderTest,
    open_console,
    open_console_client,
    open_filled_console,
)
from tests.operator_commands import wait_until_async
from tests.simulator import Fault
from tests.state import execute

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = (
    *(
        "/",
        "/traffic",
        "/requests",
        "/limits",
        "/migration",
        "/writes",
        "/compare",
        "/service",
        "/switches",
    ),
    *(
        "/explain",
        "/switches/confirm?do=freeze&merchant=*&environment=*",
    ),
)

TODAY = datetime.now(UTC).date()
SUNSET = TODAY + timedelta(days=31)
DEPRECATION = {"announced": str(TODAY - timedelta(days=30)), "sunset": str(SUNSET)}


def format_days_to_sunset(page_text: str) -> str:
    """The days are those of the page's own time, which may be after midnight."""
    match = re.search(r"As of (\d{4}-\d\d-\d\d)", page_text)
    assert match
    return f"{(SUNSET - date.fromisoformat(match[1])).days} days to the sunset"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleUnderTest]:
    async with open_filled_console(
        tmp_path_factory.mktemp("console"), deprecation=DEPRECATION
    ) as running_console:
        yield running_console


async def read_page_text(client: ConsoleClient, path: str) -> str:
    """Read a page as text."""
    answer = await client.get(path)
    assert answer.status == 200, answer.text
    text = re.sub(r"<(title|script|style|svg)\b.*?</\1>", " ", answer.text, flags=re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", text).replace("&#39;", "'").split())


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_is_one_self_contained_document(
    console_client: ConsoleClient, path: str
) -> None:
    answer = await console_client.get(path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Cache-Control"] == "no-store"
    assert len(re.findall("<h1>", answer.text)) == 1
    assert not re.findall(r"""\s(style|on\w+)=["']""", answer.text)
    assert not re.findall("<script>|<style", answer.text)
    assert not re.findall(r"""(?:href|src|action)=["'](?!/|#)""", answer.text)


async def test_overview_lists_alerts_first(console_client: ConsoleClient) -> None:
    page_text = await read_page_text(console_client, "/")
    alerts_text = page_text[page_text.index("issues") : page_text.index("Requests last 24 h")]
    assert "requests failed (5xx)" in alerts_text
    assert "1 write is in doubt" in alerts_text, "at once, as the page of writes says"
    assert "near the hourly limit: nightly of demo sandbox" in alerts_text
    assert "1 batch is superseded at the service" in alerts_text
    assert "1 compared key has responses that differ" in alerts_text
    assert alerts_text.index("failed (5xx)") < alerts_text.index("near the hourly limit")
    assert format_days_to_sunset(page_text) in page_text


@pytest.mark.parametrize("days", [-2, -1, 1, 2])
async def test_days_to_the_sunset_agree_in_number(tmp_path: Path, days: int) -> None:
    sunset = DEPRECATION | {"sunset": str(TODAY + timedelta(days=days))}
    async with (
        open_console(tmp_path, deprecation=sunset) as running_console,
        open_console_client(running_console.url) as client,
    ):
        for path in ("/", "/migration"):
            page_text = await read_page_text(client, path)
            # After midnight it is another number of days.
            pattern = r"\b(1 day|[023] days) (to the sunset|ago)|sunset is today"
            assert re.search(pattern, page_text), page_text


async def test_traffic_is_shown_by_operation_and_by_merchant(
    console_client: ConsoleClient,
) -> None:
    operations_page = await console_client.get("/traffic?hours=24")
    for name in ("list_recipients", "unmatched route"):
        assert f">{name}</a>" in operations_page.text
    full_page = await console_client.get("/traffic?hours=24&by=merchant")
    for name in OTHER_MERCHANTS[:2]:
        assert f">{name}</a>" in full_page.text
    href = re.search('href="(/traffic[^"]*merchant=northwind[^"]*)"', full_page.text)
    assert href
    filtered_page = await console_client.get(href[1].replace("&amp;", "&"))
    assert "Filtered by" in filtered_page.text
    assert "list_recipients</a>" in filtered_page.text, "a merchant leads to its operations"
    merchants = (await console_client.get("/traffic?by=merchant&merchant=northwind")).text
    assert "northwind</a>" in merchants
    assert OTHER_MERCHANTS[1] not in merchants


async def test_chart_and_table_show_the_same_numbers(console_client: ConsoleClient) -> None:
    answer = await console_client.get("/traffic?hours=6")
    plot = answer.text[answer.text.index('id="requests"') : answer.text.index("</figure>")]
    titles = re.findall(r"<title>([^<]+): answered ([\d,]+), ", plot)
    table_rows = re.findall(r'<th scope="row">([^<]+)</th><td class="number">([\d,]+)</td>', plot)
    assert len(table_rows) > 60
    assert [title for title in titles if title in table_rows] == table_rows
    assert all(number == "0" for label, number in titles if (label, number) not in table_rows)


@pytest.mark.parametrize("query", ["?hours=1", "?hours=nonsense", "?merchant=nobody&operation=<b>"])
async def test_invalid_traffic_parameters_are_answered(
    console_client: ConsoleClient, query: str
) -> None:
    answer = await console_client.get(f"/traffic{query}")
    assert answer.status == 200
    assert "<b><b>" not in answer.text


async def test_request_appears_in_traffic_within_one_second(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    path = "/traffic?hours=1&operation=read_country"
    assert "read_country</a>" not in (await console_client.get(path)).text
    assert (await console.gateway.request("GET", "/v1/geography/countries/CA")).status == 200

    async def is_request_counted() -> bool:
        return "read_country</a>" in (await console_client.get(path)).text

    await wait_until_async(is_request_counted)


async def test_durations_are_percentiles_split_into_service_and_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The service is slow; the gateway adds almost nothing."""
    async with (
        open_console(tmp_path_factory.mktemp("times")) as running_console,
        open_console_client(running_console.url) as client,
    ):
        running_console.simulator.service.faults.append(Fault("GET", "/v1/balance", delay=0.3))
        assert (await running_console.gateway.request("GET", "/v1/profile/balances")).status == 200

        async def is_request_counted() -> bool:
            return "read_balances</a>" in (await client.get("/traffic")).text

        await wait_until_async(is_request_counted)
        figures = r"read_balances 1 0 0 ([\d.]+) ms ([\d.]+) ms ([\d.]+) ms ([\d.]+) ms ([\d.]+) ms"
        row = re.search(figures, await read_page_text(client, "/traffic"))
        assert row
        service_p50, service_p95, gateway_p50, gateway_p95, slowest = map(float, row.groups())
        assert 190 <= service_p50 <= service_p95 < 1000, "at most one bucket off"
        assert gateway_p50 <= gateway_p95 < service_p50
        assert slowest >= 300


async def test_keys_near_rate_limit_are_listed_first(console_client: ConsoleClient) -> None:
    page_text = await read_page_text(console_client, "/limits")
    assert "1 above 80 %." in page_text
    assert "nightly 11 12 92 % • near demo sandbox" in page_text
    assert page_text.index("nightly") < page_text.index("demo-sandbox")


async def test_page_says_nothing_of_use_that_is_unknown(tmp_path: Path) -> None:
    async with (
        open_console(tmp_path, limits={"url": "redis://127.0.0.1:9/0"}) as running_console,
        open_console_client(running_console.url) as client,
    ):
        page_text = await read_page_text(client, "/limits")
    assert "Current use is unknown" in page_text
    assert "80 %" not in page_text


async def test_migration_page_lists_used_operations_by_key_with_replacements(
    console_client: ConsoleClient,
) -> None:
    page_text = await read_page_text(console_client, "/migration")
    assert format_days_to_sunset(page_text) in page_text
    assert "kiosk kiosk sandbox 7 operations" in page_text
    assert "inactive since" in page_text
    assert "POST /recipients/:id/accounts" in page_text


async def test_revoked_key_is_not_left_to_migrate(tmp_path: Path) -> None:
    async with (
        open_console(tmp_path) as console,
        open_console_client(console.url) as client,
    ):
        gateway = console.gateway
        keys = gateway.api_key, await gateway.import_key(name="other", api_key="another-key")
        for gateway.api_key in keys:
            assert (await gateway.request("GET", "/v1/recipients")).status == 200

        async def are_both_counted() -> bool:
            return "2 of 2 active keys" in await read_page_text(client, "/migration")

        await wait_until_async(are_both_counted)
        async with open_store(gateway.settings.state) as store:
            (other,) = [key for key in await load_listed_keys(store) if key.name == "other"]
            await revoke_key(store, other.id)
        page = await read_page_text(client, "/migration")
        assert "1 of 1 active keys used the legacy interface in the last 7 days." in page
        assert "1 request ✓ revoked" in page
        assert "Left to migrate keys, 7 days 1 " in await read_page_text(client, "/")


async def test_lost_write_and_superseded_batch_are_shown_with_advice(
    console: ConsoleUnderTest, console_client: ConsoleClient
) -> None:
    page_text = ""

    async def is_service_known_to_fail() -> bool:
        """Whether three reads of the outcome have failed, after which the advice is to wait."""
        nonlocal page_text
        page_text = await read_page_text(console_client, "/writes")
        return "wait; nothing to do yet" in page_text

    await wait_until_async(is_service_known_to_fail, 60)
    assert "1 write in doubt" in page_text
    href = re.search('href="(/trace[?]id=[^"]+)"', (await console_client.get("/writes")).text)
    assert href
    assert "create_payout_method" in await read_page_text(console_client, href[1])
    assert "1 superseded batch" in page_text
    assert "never start it: its client deleted it" in page_text
    in_doubt_writes = json.loads(
        await run_command_beside(console, "writes", "unsettled", "--json")
    )["writes"]
    assert all(write["write"] in page_text for write in in_doubt_writes)
    # Another process does not know that the service fails.
    advice = r"writes settle [0-9a-f]{12}\.\d+ --made A-…"
    assert re.search(advice, in_doubt_writes[0]["what_to_do"])


async def test_comparison_drills_down_to_fields(console_client: ConsoleClient) -> None:
    page_text = await read_page_text(console_client, "/compare")
    assert "demo-sandbox demo sandbox • not ready 48 unexplained" in page_text
    assert "1452 responses compared" in page_text
    assert "list_recipients 812 48 2 1" in page_text
    assert "recipients[].payout.primary.currency value list_recipients 41" in page_text
    assert "3c11177e92518934a0385865 legacy USD , current EUR" in page_text


async def test_service_page_shows_and_probes_capabilities(console_client: ConsoleClient) -> None:
    page_text = await read_page_text(console_client, "/service")
    assert "DELETE /batches/{id} ✓ not there" in page_text
    assert "PATCH /batches/{id} ? not tried yet" in page_text
    check_page = await console_client.post("/service", {})
    assert check_page.status == 200
    assert "Check results" in check_page.text
    assert "is refused" in check_page.text
    assert "keys rotate-secret" in check_page.text


async def test_service_page_shows_recipient_index(tmp_path: Path) -> None:
    for name in ("on", "off"):
        (tmp_path / name).mkdir()
    async with (
        open_console(tmp_path / "on") as running_console,
        open_console_client(running_console.url) as client,
    ):
        running_console.simulator.service.seed_recipients(300, seed=7)
        assert "recipient cache empty" in await read_page_text(client, "/service")
        response = await running_console.gateway.request("GET", "/v1/recipients?orderBy=city")
        cache_text = f"{response.body['meta']['records']} recipients of 1 merchant, read 0 min ago"
        assert cache_text in await read_page_text(client, "/service")
    console_without_index = open_console(tmp_path / "off", lists={"index": False})
    async with (
        console_without_index as running_console,
        open_console_client(running_console.url) as client,
    ):
        assert "recipient cache off" in await read_page_text(client, "/service")


async def test_unknown_page_leads_back_to_the_console(console_client: ConsoleClient) -> None:
    page = await console_client.get("/no/such/page")
    assert page.status == 404
    assert "No such page" in page.text
    assert 'href="/traffic"' in page.text


async def test_assets_are_cacheable_and_no_other_file_is_served(
    console_client: ConsoleClient,
) -> None:
    page = await console_client.get("/")
    for address in re.findall(r'"(/assets/[^"]+)"', page.text):
        answer = await console_client.get(address)
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
    for name in ("routes.py", "..%2froutes.py", "%2e%2e/pages.py", ""):
        assert (await console_client.get(f"/assets/{name}")).status == 404


async def run_command_beside(console_under_test: ConsoleUnderTest, *arguments: str) -> str:
    """Run a command beside the running gateway and return its output."""
    state = console_under_test.gateway.settings.state
    variables = {
        "PAYOUT_GATEWAY_STATE__URL": state.url,
        "PAYOUT_GATEWAY_STATE__ENCRYPTION_KEY_FILE": str(state.encryption_key_file),
    }
    result = await asyncio.to_thread(CliRunner(env=variables).invoke, gateway, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_unused_gateway_has_pages(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with (
        open_console(tmp_path_factory.mktemp("new")) as new_console,
        open_console_client(new_console.url) as client,
    ):
        for path in PAGES:
            assert (await client.get(path)).status == 200, path
        assert "All systems operational" in await read_page_text(client, "/")
        assert "No requests in this period." in await read_page_text(client, "/traffic")


async def test_overview_warns_of_refusals_without_a_faulty_service(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with (
        open_console(tmp_path_factory.mktemp("refusals")) as console,
        open_console_client(console.url) as client,
    ):
        async with open_store(console.gateway.settings.state) as store:
            await execute(store, text("DELETE FROM api_keys"))
        assert "no API key is imported" in await read_page_text(client, "/")
        console.gateway.api_key = "unknown"
        assert (await console.gateway.request("GET", "/v1/recipients")).status == 403

        async def is_refusal_reported() -> bool:
            return "1 of 1 requests refused (4xx)" in await read_page_text(client, "/")

        await wait_until_async(is_refusal_reported)


async def test_failures_are_no_error_once_requests_succeed_again(tmp_path: Path) -> None:
    async with (
        open_console(tmp_path) as console,
        open_store(console.gateway.settings.state) as store,
        open_console_client(console.url) as client,
    ):
        minute = compute_span_start(store.clock(), MINUTE) - 5 * MINUTE

        async def count(began_at: datetime, requests: int, failed: int) -> None:
            key = CountKey(began_at, MINUTE, "demo", "sandbox", "demo-sandbox", "list_batches")
            await add_request_counts(
                store,
                {key: RequestCounts(requests, 0, failed, first_at=began_at, last_at=began_at)},
            )

        await count(minute, 9000, 8000)
        text = "requests failed (5xx) in the last 15 minutes"
        page = await read_page_text(client, "/")
        assert re.search(f"error: [0-9,]+ of [0-9,]+ {re.escape(text)}", page)
        assert "the last at" not in page, "nobody knows: no request came since"
        await count(minute + MINUTE, 10, 0)
        page = await read_page_text(client, "/")
        last_failure = f"{re.escape(text)}, the last at {minute:%H:%M} UTC"
        assert re.search(f"warning: [0-9,]+ of [0-9,]+ {last_failure}", page)


async def test_overview_warns_of_one_merchant_among_many(tmp_path: Path) -> None:
    async with (
        open_console(tmp_path) as console,
        open_console_client(console.url) as client,
    ):
        gateway = console.gateway
        for _ in range(7):
            assert (await gateway.request("GET", "/v1/geography/countries/US")).status == 200
        await gateway.import_key(merchant="other", access_key="AK-other", api_key="another-key")
        gateway.api_key = "another-key"
        for _ in range(3):
            assert (await gateway.request("GET", "/v1/recipients/R-unknown")).status >= 400

        async def is_merchant_reported() -> bool:
            page = await read_page_text(client, "/")
            return "requests of the last 15 minutes got errors: other" in page

        await wait_until_async(is_merchant_reported)


async def test_restored_state_is_announced_on_overview(tmp_path: Path) -> None:
    async with (
        open_console(tmp_path) as running_console,
        open_console_client(running_console.url) as client,
    ):
        async with open_store(running_console.gateway.settings.state) as store:
            await set_restored_flag(store, NO_MARK)
        page_text = await read_page_text(client, "/")
        assert "1 issue" in page_text
        assert "so no batch is started: run payout-gateway reconcile" in page_text


async def test_page_without_state_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("gone")
    async with (
        open_console(folder) as running_console,
        open_console_client(running_console.url) as client,
    ):
        await client.get("/")
        async with open_store(running_console.gateway.settings.state) as store:
            await execute(store, text("DROP TABLE request_counts"))
        answer: Answer = await client.get("/traffic")
        assert answer.status == 503
        assert "The database is unavailable" in answer.text
