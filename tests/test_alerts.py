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

from tests.operating import lose_a_batch, post
from tests.promql import NotPromQL, read
from tests.scrape import Scrape
from tests.test_metrics import KNOWN, figures
from tests.valley import open_valley

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))
DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text("utf-8"))

OF_PROMETHEUS = {"up": {"job", "instance"}}
"""Metrics that Prometheus adds for each target, with their labels."""

ITS_LABELS = {"job", "instance"}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    """A scrape after an answer, a refusal, a write in doubt and a forwarded read."""

    async def asked() -> Scrape:
        async with open_valley(tmp_path_factory.mktemp("forwarded")) as there:
            await there.switch("forward")
        async with post(tmp_path_factory.mktemp("alerts")) as here:
            await here.house.ask("GET", "/v1/recipients")
            await here.house.ask("GET", "/v1/nowhere")
            await lose_a_batch(here)
            return await figures(here.house)

    return asyncio.run(asked())


@pytest.mark.parametrize(("name", "expression"), list(expressions()), ids=lambda one: one[:40])
def test_every_metric_label_and_value_is_in_a_real_scrape(
    name: str, expression: str, real: Scrape
) -> None:
    found = read(expression)
    assert found.selectors, name
    for one in found.selectors:
        labels = OF_PROMETHEUS.get(one.metric)
        if labels is None:
            samples = real.of(one.metric)
            assert samples, f"{one.metric} is in no scrape"
            labels = {label for sample in samples for label in sample.labels} | ITS_LABELS
        assert {label for label, _, _ in one.matchers} <= labels, one
        assert found.grouped_by - {"le"} <= labels, one
        for label, operator, value in one.matchers:
            if label in KNOWN and value != "$environment":
                values = value.split("|") if operator in ("=~", "!~") else [value]
                assert set(values) <= KNOWN[label], one


def test_each_alert_says_what_it_means_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        said = " ".join(rule["annotations"].values())
        grouped = read(rule["expr"]).grouped_by | {"instance", "environment"}
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= grouped


def test_commands_that_alerts_name_exist() -> None:
    from gateway.cli import COMMANDS

    text = (DEPLOY / "prometheus/alerts.yml").read_text("utf-8")
    named = re.findall(r"payout-gateway ([a-z][\w-]*)", text)
    assert named
    assert set(named) <= COMMANDS.keys()


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize(
    "expression",
    ["sum(rate(x[5m])", "rate(x[5m]))", "nonsense(x)", 'x{a="1"', "x{a 1}", "sum x", "x ; y"],
)
def test_what_is_no_expression_is_found(expression: str) -> None:
    with pytest.raises(NotPromQL):
        read(expression)
