"""`payout-gateway rehearse`: tests every assumption at one's own sandbox."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import json_option, print_json
from gateway.cli.errors import CommandError
from gateway.cli.options import load_command_settings
from gateway.cli.output import print_table, run_to_completion
from gateway.cli.progress import show_progress
from gateway.config.settings import DEFAULT_CONFIG_FILE, Settings

if TYPE_CHECKING:
    from gateway.auth.key_rows import ListedKey
    from gateway.operator.rehearsal.report import Report
    from gateway.storage import Store

COLOURS = {
    "holds": "green",
    "ok": "green",
    "differs: handled": "yellow",
    "differs: clients would notice": "bold red",
    "failed": "bold red",
}
MAX_LINE_CHARACTERS = 160
SANDBOX = "sandbox"


@click.command()
@click.option("--key", "key_name", required=True, metavar="NAME", help="A key of the sandbox.")
@click.option("--start", is_flag=True, help="Also start a batch: the sandbox then pays it.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page here.")
@json_option
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Configuration file. Default: {DEFAULT_CONFIG_FILE} if it exists.",
)
def rehearse(
    *, key_name: str, start: bool, html: Path | None, as_json: bool, config: Path | None
) -> None:
    """Run every legacy operation against your sandbox, and test each assumption by name.

    Creates recipients at example.com and batches, which it deletes again; their referenceId or
    description begins with "payout-gateway-rehearsal-". Ctrl-C stops it and cleans up; the same
    command continues it. Exit code 0 if clients would notice nothing, 1 if they would, 2 if it could
    not run to the end.
    """
    from gateway.operator.rehearsal.report import propose_settings, render_rehearsal_page

    settings = load_command_settings(config)
    report = run_to_completion(_rehearse(settings, key_name, may_start=start))
    file = config or DEFAULT_CONFIG_FILE
    text = file.read_text("utf-8") if file.exists() else ""
    report["settings_diff"] = propose_settings(report, settings, text)
    if html:
        html.write_text(render_rehearsal_page(report), "utf-8")
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    click.get_current_context().exit(report["exit_code"])


async def _rehearse(settings: Settings, key_name: str, *, may_start: bool) -> Report:
    from gateway.auth.key_rows import load_credentials
    from gateway.operator.preflight import check_settings_are_runnable
    from gateway.operator.rehearsal.run import RehearsalRun
    from gateway.operator.rehearsal.runner import run_rehearsal
    from gateway.operator.rehearsal.sandbox import ServiceSilent
    from gateway.operator.rehearsal.scenario import CHAPTERS
    from gateway.server.rehearsal_gateway import open_rehearsal_sandbox
    from gateway.storage import ObjectStateStore, open_store

    check_settings_are_runnable(settings)
    async with open_store(settings.state, create=False) as store:
        key = await _find_sandbox_key(settings, store, key_name)
        credentials = await load_credentials(store, key.tenant)
        with _count_interruptions() as interruptions, show_progress("Rehearsing") as show:

            def report_chapter(number: int, name: str) -> None:
                show(number, len(CHAPTERS) + 1)
                if not sys.stderr.isatty():
                    click.echo(f"{number + 1} of {len(CHAPTERS) + 1}: {name}", err=True)

            async with open_rehearsal_sandbox(settings, key.tenant, credentials) as sandbox:
                run = RehearsalRun(sandbox, may_start, lambda: bool(interruptions))
                try:
                    return await run_rehearsal(
                        run,
                        ObjectStateStore(store),
                        count_interruptions=lambda: len(interruptions),
                        report_chapter=report_chapter,
                    )
                except ServiceSilent as silent:
                    raise CommandError(str(silent)) from None


async def _find_sandbox_key(settings: Settings, store: Store, name: str) -> ListedKey:
    """Finds the key; raises CommandError unless it may only write to a configured sandbox."""
    from gateway.auth.key_rows import find_keys_by_name_or_prefix, load_listed_keys
    from gateway.storage.freezes import list_freezes

    listed = await load_listed_keys(store)
    matches = [key for key in find_keys_by_name_or_prefix(listed, name) if not key.revoked_at]
    if len(matches) != 1:
        raise CommandError("no active key has this name; `keys list` shows the keys")
    (key,) = matches
    # Some services tell the environments apart by their keys alone.
    access_keys = {other.access_key for other in listed if other.environment != SANDBOX}
    if key.environment != SANDBOX or key.access_key in access_keys:
        raise CommandError(
            f"the key is of the {key.environment} environment or has its credentials; a rehearsal "
            "writes, so it runs in the sandbox only"
        )
    if settings.environments.sandbox is None:
        raise CommandError("[environments.sandbox] is not configured; set its base_url")
    scopes = [freeze.scope for freeze in await list_freezes(store)]
    if any(
        scope.merchant in ("", key.merchant) and scope.environment in ("", SANDBOX)
        for scope in scopes
    ):
        raise CommandError("writes are frozen; run `unfreeze` first")
    return key


@contextmanager
def _count_interruptions() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of stopping: what was made has to be removed."""
    received: list[int] = []
    loop = asyncio.get_running_loop()
    # Python delivers signals to the main thread only; tests run commands in others.
    signals = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        signals = ()  # type: ignore[assignment]
    for number in signals:
        loop.add_signal_handler(number, received.append, number)
    try:
        yield received
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _print_report(report: Report) -> None:
    click.echo(f"{report['verdict'][:1].upper()}{report['verdict'][1:]}.\n")
    rows: list[dict[str, Any]] = sorted(
        report["assumptions"], key=lambda row: [*report["counts"]].index(row["verdict"])
    )
    print_table(
        ["assumption", "verdict", "seen", "what the gateway does if it differs"],
        [[row["name"], row["verdict"], row["seen"], row["if_different"]] for row in rows],
        COLOURS,
        MAX_LINE_CHARACTERS,
    )
    click.echo()
    operations = sorted(report["operations"], key=lambda row: row["outcome"] == "ok")
    print_table(
        ["operation", "outcome", "seen"],
        [[row["name"], row["outcome"], row["seen"]] for row in operations],
        COLOURS,
        MAX_LINE_CHARACTERS,
    )
    if report["settings_diff"]:
        click.echo(f"\nSettings that suit this service:\n{report['settings_diff']}")
    if report["left"]:
        click.echo("\nLeft at the service:")
    for item in report["left"]:
        click.echo(f"  {item['kind']} {item['id']}: {item['reason']}")
