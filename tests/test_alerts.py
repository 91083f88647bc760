"""Alert rules and the dashboard, checked against a real scrape."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.legacy_and_current import open_gateway_between
from tests.metrics_scrape import Scrape
from tests.operator_commands import lose_batch_create, open_operated_gateway, wait_until_async
from tests.promql import PromQLError, parse_promql
from tests.test_documentation_links import build_anchor
from tests.test_metrics import KNOWN_LABEL_VALUES, REQUEST_OUTCOMES, scrape_gateway

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))
DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text("utf-8"))

PROMETHEUS_METRICS = {"up": {"job", "instance"}}
"""Metrics that Prometheus adds for each target, with their labels."""

TARGET_LABELS = {"job", "instance", "worker"}
"""The last one is added by the parent of several workers."""


def list_alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def iterate_expressions() -> Iterator[tuple[str, str]]:
    for rule in list_alerts():
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def real_scrape(tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    """A scrape after an answer, a refusal, a write in doubt and a forwarded read."""

    async def run_requests() -> Scrape:
        async with open_gateway_between(tmp_path_factory.mktemp("forwarded")) as forwarding:
            await forwarding.set_mode("forward")
        async with open_operated_gateway(tmp_path_factory.mktemp("alerts")) as setup:
            await setup.gateway.request("GET", "/v1/recipients")
            await setup.gateway.request("GET", "/v1/nowhere")
            await lose_batch_create(setup)

            async def has_event_loop_lag() -> bool:
                scrape = await scrape_gateway(setup.gateway)
                return bool(scrape.get_value("payout_gateway_event_loop_lag_seconds_count"))

            # Measured four times a second.
            await wait_until_async(has_event_loop_lag)
            return await scrape_gateway(setup.gateway)

    return asyncio.run(run_requests())


@pytest.mark.parametrize(
    ("name", "expression"), list(iterate_expressions()), ids=lambda item: item[:40]
)
def test_expressions_use_only_metrics_labels_and_values_of_a_real_scrape(
    name: str, expression: str, real_scrape: Scrape
) -> None:
    parsed_expression = parse_promql(expression)
    assert parsed_expression.selectors, name
    for selector in parsed_expression.selectors:
        labels = PROMETHEUS_METRICS.get(selector.metric)
        if labels is None:
            samples = real_scrape.get_value(selector.metric)
            assert samples, f"{selector.metric} is in no scrape"
            labels = {label for sample in samples for label in sample.labels} | TARGET_LABELS
        assert {label for label, _, _ in selector.matchers} <= labels, selector
        assert parsed_expression.grouped_by - {"le"} <= labels, selector
        for label, operator, value in selector.matchers:
            if label in KNOWN_LABEL_VALUES and value != "$environment":
                values = value.split("|") if operator in ("=~", "!~") else [value]
                assert set(values) <= KNOWN_LABEL_VALUES[label], selector


def test_every_alert_has_severity_and_annotations() -> None:
    names = [rule["alert"] for rule in list_alerts()]
    assert len(set(names)) == len(names)
    for rule in list_alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        section = read_section(DEPLOY.parent / page, anchor)
        assert f"`{rule['alert']}`" in section, "its own section says what it means"
        annotations = " ".join(rule["annotations"].values())
        grouped = parse_promql(rule["expr"]).grouped_by | {"instance", "environment"}
        assert set(re.findall(r"\$labels\.(\w+)", annotations)) <= grouped


def test_runbook_explains_every_outcome_of_an_error() -> None:
    section = read_section(DEPLOY / "runbook.md", "clients-get-errors")
    explained = {
        outcome
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for outcome in re.findall(r"`(\w+)`", row)
    }
    assert explained == REQUEST_OUTCOMES - {"success"}


def read_section(page: Path, anchor: str) -> str:
    """Reads the section with an anchor, without its subsections and those after it."""
    sections = re.split(r"^(?=#{2,} )", page.read_text("utf-8"), flags=re.MULTILINE)
    (section,) = [
        section for section in sections[1:] if build_anchor(section.splitlines()[0]) == anchor
    ]
    return section


def test_alerts_name_only_existing_commands() -> None:
    from gateway.cli import COMMANDS

    text = (DEPLOY / "prometheus/alerts.yml").read_text("utf-8")
    command_names = re.findall(r"payout-gateway ([a-z][\w-]*)", text)
    assert command_names
    assert set(command_names) <= COMMANDS.keys()


def test_dashboard_panels_do_not_overlap() -> None:
    occupied_cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & occupied_cells, panel["title"]
        occupied_cells |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    "expression",
    ["sum(rate(x[5m])", "rate(x[5m]))", "nonsense(x)", 'x{a="1"', "x{a 1}", "sum x", "x ; y"],
)
def test_invalid_expression_is_rejected(expression: str) -> None:
    with pytest.raises(PromQLError):
        parse_promql(expression)
