"""`payout-gateway rehearse`: tests every assumption at one's own sandbox."""

import asyncio
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import click

from gateway.auth.key_rows import find_single_key, load_credentials, load_listed_keys
from gateway.cli import CommandError, options, output
from gateway.config.settings import Environments, Server, Settings, State
from gateway.operator.rehearsal import report as reports
from gateway.operator.rehearsal.report import Report
from gateway.operator.rehearsal.run import RecordingClient, RehearsalRun, RehearsalStopped
from gateway.operator.rehearsal.runner import run_rehearsal
from gateway.server.app import run_gateway
from gateway.server.demo import open_temporary_state
from gateway.storage import Store, Tenant
from gateway.storage.checkpoints import is_frozen


@click.command()
@click.option("--key", "key_name", required=True, metavar="NAME", help="A key of the sandbox.")
@click.option("--start", is_flag=True, help="Also start a batch: the sandbox then pays it.")
@options.json_option
@options.config_option
def rehearse(*, key_name: str, start: bool, as_json: bool, settings: Settings) -> None:
    """Run every legacy operation against your sandbox, and test each assumption by name.

    Creates recipients at example.com and batches, which it deletes again; their referenceId or
    description begins with "payout-gateway-rehearsal-". Ctrl-C or SIGTERM stops it and cleans up. Exit
    code 0 if clients would notice nothing, 1 if they would, 2 if it could not run to the end.
    """
    report = output.run_with_store(
        settings, lambda store: _rehearse(settings, store, key_name, may_start=start)
    )
    report["settings"] = reports.propose_settings(report, settings)
    if as_json:
        options.print_json(report)
    else:
        click.echo(f"{report['verdict'][:1].upper()}{report['verdict'][1:]}.\n")
        rows = [
            [f"{row['name']}: {row['presumed']}", *[*row.values()][2:]]
            for row in report["rows"]
            if row["verdict"] != reports.HOLDS
        ]
        output.print_table(reports.COLUMNS, rows, reports.COLOURS)
        click.echo("\n--json lists what holds too.")
        for item in report["left"]:
            click.echo(f"Left at the service: {item['kind']} {item['id']}: {item['reason']}.")
        for setting in report["settings"]:
            click.echo(f"A setting that suits this service: {setting}")
    click.get_current_context().exit(report["exit_code"])


async def _rehearse(settings: Settings, store: Store, key_name: str, *, may_start: bool) -> Report:
    """Runs a whole gateway in this process, on loopback, with its own state and one key.

    It has the operator's settings, except for those that concern clients; its client of the service
    records each call. Raises ConfigurationError and StoreUnavailable.
    """
    clients: list[RecordingClient] = []

    def create_client(*parts: Any) -> RecordingClient:
        clients.append(RecordingClient(partial(click.echo, err=True), *parts))
        return clients[-1]

    tenant = await _find_sandbox_tenant(settings, store, key_name)
    credentials, api_key = await load_credentials(store, tenant), secrets.token_hex(16)
    async with (
        open_temporary_state(tenant, credentials, api_key, "rehearsal") as state,
        run_gateway(_build_own_settings(settings, state), create_client=create_client) as gateway,
        # Without a timeout, because a rate limit may delay several calls of a request.
        aiohttp.ClientSession(
            gateway.url, headers={"X-API-Key": api_key}, timeout=aiohttp.ClientTimeout()
        ) as http,
    ):
        parts = (settings, credentials, http, clients[0], may_start)
        run = RehearsalRun(*parts, is_interrupted=_catch_first_interrupt())
        try:
            return await run_rehearsal(run)
        except RehearsalStopped as reason:
            raise CommandError(f"{reason}; `payout-gateway doctor` says what is wrong") from None


def _catch_first_interrupt() -> Callable[[], bool]:
    """Returns whether there was a Ctrl-C or SIGTERM; a second one ends the process."""
    interrupted, loop = asyncio.Event(), asyncio.get_running_loop()

    def handle_interrupt() -> None:
        interrupted.set()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(signal_number)

    with suppress(RuntimeError, ValueError):  # another thread than the main one gets no signals
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, handle_interrupt)
    return interrupted.is_set


async def _find_sandbox_tenant(settings: Settings, store: Store, key_name: str) -> Tenant:
    """Finds the key's tenant; raises CommandError unless it may only write to the sandbox."""
    listed_keys = await load_listed_keys(store)
    key = find_single_key(listed_keys, key_name)
    # Some services tell the environments apart by their keys alone.
    for other in listed_keys:
        if other.environment != "sandbox" and other.access_key == key.access_key:
            raise CommandError(
                f"{key_name} has the credentials of {other.name}, a key of the {other.environment} "
                "environment; a rehearsal writes, so it runs in the sandbox only"
            )
    if key.revoked_at or settings.environments.sandbox is None:
        raise CommandError("the key is revoked, or [environments.sandbox] is not configured")
    if await store.read(lambda tx: is_frozen(tx, key.tenant)):
        raise CommandError("writes are frozen; `freeze --list` shows the commands that end it")
    if not await store.database.acquire_lock(f"rehearsal {key.tenant.merchant}"):
        raise CommandError("a rehearsal of this merchant is running; wait for its end, or stop it")
    return key.tenant


def _build_own_settings(settings: Settings, state: State) -> Settings:
    changes: dict[str, Any] = {
        name: Settings.model_fields[name].default for name in ("limits", "deprecation", "traces")
    }
    changes |= {"server": Server(port=0, admin_port=0), "state": state}
    # Without live: nothing here can reach it.
    changes["environments"] = Environments(sandbox=settings.environments.sandbox)
    return settings.model_copy(update=changes)
