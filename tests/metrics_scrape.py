"""Parses `/metrics` as a scraper does."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

ACCEPT = "application/openmetrics-text; version=1.0.0, text/plain; version=0.0.4; q=0.5"


@dataclass(frozen=True, slots=True)
class Scrape:
    samples: tuple[Sample, ...]

    def get_value(self, name: str, **labels: str) -> list[Sample]:
        """The samples of a name with these labels, whatever others they have."""
        return [
            sample
            for sample in self.samples
            if sample.name == name and labels.items() <= dict(sample.labels).items()
        ]

    def sum(self, name: str, **labels: str) -> float:
        return sum(sample.value for sample in self.get_value(name, **labels))

    def series(self) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {(sample.name, tuple(sorted(sample.labels.items()))) for sample in self.samples}


def parse_scrape(text: str) -> Scrape:
    families = text_string_to_metric_families(text)
    return Scrape(tuple(sample for family in families for sample in family.samples))


async def fetch_metrics(session: aiohttp.ClientSession, admin_url: str) -> Scrape:
    async with session.get(f"{admin_url}/metrics", headers={"Accept": ACCEPT}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        return parse_scrape(await response.text())


def measure_increase(after: Scrape, before: Scrape, name: str, **labels: str) -> float:
    """The increase between two scrapes: counters outlive a gateway within one test process."""
    return after.sum(name, **labels) - before.sum(name, **labels)
