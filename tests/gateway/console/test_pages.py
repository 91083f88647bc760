"""What the pages say, of a gateway that was used."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner
from sqlalchemy import text

from gateway.cli import gateway
from gateway.simulator import Fault
from gateway.storage import open_store
from gateway.storage.restore_marks import NONE, flag_restored
from gateway.storage.traffic_rows import (
    KEPT,
    Span,
    Traffic,
    add_traffic,
    forget_traffic,
    span_of,
    traffic_by,
)
from tests.console import OTHERS, Answer, Seen, Visitor, filled, open_console, visiting
from tests.house import settings_for
from tests.operating import eventually
from tests.states import execute

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = (
    *("/", "/traffic", "/limits", "/migration", "/writes", "/compare", "/service", "/switches"),
    *("/explain", "/compare/key?key=demo-sandbox", "/switches/confirm?do=freeze"),
)

TODAY = datetime.now(UTC).date()
ENDS = {
    "announced": str(TODAY - timedelta(days=30)),
    "sunset": str(TODAY + timedelta(days=31)),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seen]:
    async with filled(tmp_path_factory.mktemp("console"), deprecation=ENDS) as seen:
        yield seen


async def words(visitor: Visitor, path: str) -> str:
    """A page without its tags."""
    answer = await visitor.get(path)
    assert answer.status == 200, answer.text
    text = re.sub(r"<(title|script|style|svg)\b.*?</\1>", " ", answer.text, flags=re.DOTALL)
    return " ".join(re.sub("<[^>]*>", " ", text).replace("&#39;", "'").split())


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_is_one_document_that_asks_nobody_else(
    visitor: Visitor, path: str
) -> None:
    answer = await visitor.get(path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Cache-Control"] == "no-store"
    assert len(re.findall("<h1>", answer.text)) == 1
    assert not re.findall(r"""\s(style|on\w+)=["']""", answer.text)
    assert not re.findall("<script>|<style", answer.text)
    assert not re.findall(r"""(?:href|src|action)=["'](?!/|#)""", answer.text)


async def test_the_overview_says_what_needs_somebody_first(visitor: Visitor) -> None:
    said = await words(visitor, "/")
    matters = said[said.index("issues") : said.index("Requests last 24 h")]
    assert "requests failed (5xx)" in matters
    assert "1 key is near its limit" in matters
    assert "1 batch is superseded at the service" in matters
    assert "1 compared key has answers that differ" in matters
    assert matters.index("failed (5xx)") < matters.index("near its limit")
    assert "31 days to the sunset" in said


async def test_traffic_is_told_by_operation_and_merchant_and_of_one_alone(
    visitor: Visitor,
) -> None:
    every = await visitor.get("/traffic")
    for name in ("list_recipients", "unmatched route", *OTHERS):
        assert f">{name}</a>" in every.text
    href = re.search('href="(/traffic[^"]*merchant=kiosk[^"]*)"', every.text)
    assert href
    one = await visitor.get(href[1].replace("&amp;", "&"))
    assert "Filtered by" in one.text
    merchants = one.text[one.text.index("By merchant") :]
    assert "kiosk" in merchants
    assert "northwind" not in merchants


async def test_a_plot_and_its_table_tell_the_same(visitor: Visitor) -> None:
    answer = await visitor.get("/traffic?hours=6")
    plot = answer.text[answer.text.index('id="requests"') : answer.text.index('id="at-service"')]
    titles = re.findall(r"<title>([^<]+): answered ([\d,]+), ", plot)
    rows = re.findall(r'<th scope="row">([^<]+)</th><td class="number">([\d,]+)</td>', plot)
    assert len(rows) > 60
    assert [one for one in titles if one in rows] == rows
    assert all(number == "0" for label, number in titles if (label, number) not in rows)


@pytest.mark.parametrize("query", ["?hours=1", "?hours=nonsense", "?merchant=nobody&operation=<b>"])
async def test_odd_questions_about_traffic_are_answered(visitor: Visitor, query: str) -> None:
    answer = await visitor.get(f"/traffic{query}")
    assert answer.status == 200
    assert "<b><b>" not in answer.text


async def test_what_was_just_asked_is_in_the_traffic_within_a_second(
    seen: Seen, visitor: Visitor
) -> None:
    path = "/traffic?hours=1&operation=read_country"
    assert "read_country</a>" not in (await visitor.get(path)).text
    assert (await seen.house.ask("GET", "/v1/geography/countries/CA")).status == 200

    async def counted() -> bool:
        return "read_country</a>" in (await visitor.get(path)).text

    await eventually(counted)


async def test_times_are_told_as_percentiles_split_into_service_and_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The service takes its time, the gateway next to none."""
    async with (
        open_console(tmp_path_factory.mktemp("times")) as seen,
        visiting(seen.url) as visitor,
    ):
        seen.simulator.next(Fault("GET", "/v1/balance", delay=0.3))
        assert (await seen.house.ask("GET", "/v1/profile/balances")).status == 200

        async def counted() -> bool:
            return "read_balances</a>" in (await visitor.get("/traffic")).text

        await eventually(counted)
        for when in ("last 24 h", "now"):
            row = re.search(rf"{when} 1 " + r"([\d.]+) ms " * 7, await words(visitor, "/traffic"))
            assert row
            *service, gateway, _, _, slowest = map(float, row.groups())
            assert service == sorted(service)
            assert 190 <= service[0] < 1000, "a bucket off at most"
            assert gateway < service[0]
            assert slowest >= 300


async def test_who_is_near_the_limit_comes_first(visitor: Visitor) -> None:
    said = await words(visitor, "/limits")
    assert "1 above 80 %." in said
    assert "nightly 11 12 92 % • near demo sandbox" in said
    assert said.index("nightly") < said.index("demo-sandbox")


async def test_the_migration_page_says_who_still_uses_what_and_what_it_becomes(
    visitor: Visitor,
) -> None:
    said = await words(visitor, "/migration")
    assert "31 days to the sunset" in said
    assert "kiosk kiosk sandbox 7 operations" in said
    assert "inactive since" in said
    assert "POST /recipients/:id/accounts" in said
    assert "migrate-guide --key northwind" in said


async def test_a_lost_write_and_an_abandoned_batch_are_shown_with_what_to_do(
    seen: Seen, visitor: Visitor
) -> None:
    said = await words(visitor, "/writes")
    assert "1 write in doubt" in said
    assert re.search(r"writes settle [0-9a-f]{12}\.\d+ --made A-…", said)
    assert "1 superseded batch" in said
    assert "never start it: its client deleted it" in said
    listed = json.loads(await commanded(seen, "writes", "unsettled", "--json"))["writes"]
    assert all(one["write"] in said for one in listed)


async def test_comparison_drills_down_to_the_fields(visitor: Visitor) -> None:
    assert "demo-sandbox • not ready 48 1,452 2 0 demo sandbox" in await words(visitor, "/compare")
    said = await words(visitor, "/compare/key?key=demo-sandbox")
    assert "recipients[].payout.primary.currency value 41" in said
    assert (await visitor.get("/compare/key?key=nobody")).status == 404


async def test_the_service_page_has_what_was_found_out_and_tries_it(visitor: Visitor) -> None:
    said = await words(visitor, "/service")
    assert "DELETE /batches/{id} not there" in said
    assert "PATCH /batches/{id} not needed yet" in said
    tried = await visitor.post("/service", {})
    assert tried.status == 200
    assert "Check results" in tried.text
    assert "is refused" in tried.text
    assert "keys rotate-secret" in tried.text


async def test_the_service_page_has_the_index_of_recipients(tmp_path: Path) -> None:
    for name in ("on", "off"):
        (tmp_path / name).mkdir()
    async with open_console(tmp_path / "on") as seen, visiting(seen.url) as visitor:
        seen.simulator.service.seed_recipients(300, seed=7)
        assert "recipient cache empty" in await words(visitor, "/service")
        got = await seen.house.ask("GET", "/v1/recipients?orderBy=city")
        told = f"{got.body['meta']['records']} recipients of 1 merchant, read 0 min ago"
        assert told in await words(visitor, "/service")
    off = open_console(tmp_path / "off", lists={"index": False})
    async with off as seen, visiting(seen.url) as visitor:
        assert "recipient cache off" in await words(visitor, "/service")


async def test_assets_may_be_kept_for_good_and_nothing_else_is_given(visitor: Visitor) -> None:
    page = await visitor.get("/")
    for address in re.findall(r'"(/assets/[^"]+)"', page.text):
        answer = await visitor.get(address)
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
    for name in ("routes.py", "..%2froutes.py", "%2e%2e/pages.py", ""):
        assert (await visitor.get(f"/assets/{name}")).status == 404


async def commanded(seen: Seen, *words: str) -> str:
    """What a command says beside the running gateway."""
    state = seen.house.settings.state
    variables = {
        "PAYOUT_GATEWAY_STATE__URL": state.url,
        "PAYOUT_GATEWAY_STATE__ENCRYPTION_KEY_FILE": str(state.encryption_key_file),
    }
    done = await asyncio.to_thread(CliRunner(env=variables).invoke, gateway, words)
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_a_gateway_that_nobody_used_has_pages_too(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    async with open_console(tmp_path_factory.mktemp("new")) as new, visiting(new.url) as visitor:
        for path in PAGES:
            known = 404 if path.startswith("/compare/key") else 200
            assert (await visitor.get(path)).status == known, path
        assert "All systems operational" in await words(visitor, "/")
        assert "No requests in this period." in await words(visitor, "/traffic")


async def test_where_the_state_was_put_back_the_first_page_says_so(tmp_path: Path) -> None:
    async with open_console(tmp_path) as seen, visiting(seen.url) as visitor:
        async with open_store(seen.house.settings.state) as store:
            await flag_restored(store, NONE)
        said = await words(visitor, "/")
        assert "1 issue" in said
        assert "so no batch is started: run `payout-gateway reconcile`" in said


async def test_where_the_state_is_gone_a_page_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("gone")
    async with open_console(folder) as seen, visiting(seen.url) as visitor:
        await visitor.get("/")
        async with open_store(seen.house.settings.state) as store:
            await execute(store, text("DROP TABLE traffic"))
        answer: Answer = await visitor.get("/traffic")
        assert answer.status == 503
        assert "The database is unavailable" in answer.text


async def test_traffic_is_forgotten_after_its_time_and_spans_add_up(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = settings_for(tmp_path_factory.mktemp("spans"), "http://127.0.0.1:9")
    async with open_store(settings.state) as store:
        now = store.clock()
        new, old = span_of(now), span_of(now - KEPT - timedelta(hours=1))
        for _ in range(2):
            carried = {
                Span(new, "a", "live", "x"): Traffic(3, 1, 1, 30, 20, 12),
                Span(old, "a", "live", "x"): Traffic(5, 0, 0, 1, 1, 1),
            }
            await store.write(partial(add_traffic, carried=carried))
        await forget_traffic(store)
        found = await traffic_by(store, old, "began_at", "operation")
        assert found == {(new, "x"): Traffic(6, 2, 2, 60, 40, 12)}
        assert (await traffic_by(store, old, only={"merchant": "b"}))[()].requests == 0


async def test_durations_of_several_writings_add_up(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = settings_for(tmp_path_factory.mktemp("durations"), "http://127.0.0.1:9")
    async with open_store(settings.state) as store:
        began_at = span_of(store.clock())
        for merchant, ms in (("a", 3.0), ("a", 3.0), ("b", 3.0), ("b", 9_000.0)):
            its = Traffic(1, service_ms=9)
            its.gateway.count(ms)
            carried = {Span(began_at, merchant, "live", "x"): its}
            await store.write(partial(add_traffic, carried=carried))
        found = await traffic_by(store, began_at, "operation", durations=True)
    (whole,) = found.values()
    whole.slowest_ms = 7_000
    assert whole.percentile("gateway", 99) == 7_000
    assert whole.percentile("gateway", 50) == whole.gateway.percentile(50)
    assert whole.percentile("service", 50) is None
    assert (whole.requests, whole.gateway.total, whole.service.total) == (4, 4, 0)
    assert (whole.gateway.percentile(50) or 0) <= 4
    assert (whole.gateway.percentile(99) or 0) > 6_300
