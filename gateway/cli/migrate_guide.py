"""`payout-gateway migrate-guide`: writes a migration guide for a merchant's developers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TextIO

import click

from gateway.cli.errors import CommandError
from gateway.cli.options import config_option
from gateway.cli.output import run_with_store
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.storage import Store


@click.command("migrate-guide")
@click.option("--key", "word", required=True, help="The key, by name or prefix.")
@click.option("--days", type=click.IntRange(min=1), help="Only the last N days, including today.")
@click.option(
    "--output",
    type=click.File("w", encoding="utf-8", lazy=True),
    default="-",
    help="Output file. Default: standard output.",
)
@config_option
def migrate_guide(*, word: str, days: int | None, output: TextIO, settings: Settings) -> None:
    """Write a migration guide, in Markdown, for the developers who use a key.

    The guide covers the operations that the key really used: each call before and after, errors
    that change, limits, and how to sign requests, with a test vector. It contains no secrets and no
    client data; the examples are made up.
    """
    from gateway.cli.keys import require_single_key
    from gateway.docgen.guide import load_guide_data, render_guide

    async def load_and_render_guide(store: Store) -> str:
        key = await require_single_key(store, word)
        return render_guide(await load_guide_data(settings, store, key, since), settings)

    # Usage is counted per UTC day, and today is one of the days.
    since = datetime.now(UTC).date() - timedelta(days=days - 1) if days else None
    # Rendered before the output is opened: an error must not leave an empty file.
    page = run_with_store(settings, load_and_render_guide)
    try:
        output.write(page)
    except OSError as error:
        raise CommandError(f"the guide cannot be written: {error.strerror}") from None
