"""`payout-gateway serve`: runs the gateway, with a configuration or as a demo."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.errors import CommandError
from gateway.cli.options import load_command_settings
from gateway.config.settings import DEFAULT_CONFIG_FILE, ConfigurationError, Settings, load_settings

if TYPE_CHECKING:
    from gateway.server.app import RunningGateway

NO_CONFIGURATION = (
    "no configuration: there is no gateway.toml in this directory, and no PAYOUT_GATEWAY_… "
    "variable configures an environment. Copy deploy/gateway.example.toml and edit it, or try "
    "`serve --demo`"
)


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Configuration file. Default: {DEFAULT_CONFIG_FILE}.",
)
@click.option("--demo", is_flag=True, help="Run against the built-in simulator, on loopback only.")
def serve(*, config: Path | None, demo: bool) -> int:
    """Run the gateway until it receives SIGTERM or SIGINT.

    SIGHUP reloads: with several workers, it replaces them without dropping requests; with a single
    worker, it reloads the TLS certificate.
    """
    import uvloop

    from gateway.observability import logs

    if demo and config:
        raise click.UsageError("--demo uses its own configuration; omit --config")
    settings = load_command_settings(config)
    if (
        not demo
        and not settings.environments.map_configured_environments_by_name()
        and config is None
        and not DEFAULT_CONFIG_FILE.exists()
    ):
        raise CommandError(NO_CONFIGURATION)
    # Not earlier: errors of the configuration are plain text for the operator.
    logs.configure_logging()
    if settings.server.workers > 1 and not demo:
        return _serve_with_workers(
            settings, config or (DEFAULT_CONFIG_FILE if DEFAULT_CONFIG_FILE.exists() else None)
        )
    # A single process; the demo ignores server.workers.
    uvloop.run(_serve_demo(settings) if demo else _serve_single_process(settings))
    return 0


def _serve_with_workers(settings: Settings, config: Path | None) -> int:
    from gateway.server.workers.supervisor import supervise_workers
    from gateway.server.workers.worker_process import WorkerStartError

    def announce_addresses(url: str, admin_url: str) -> None:
        print(format_start_message(url, admin_url), flush=True)

    try:
        return asyncio.run(
            supervise_workers(settings, config, lambda: load_settings(config), announce_addresses)
        )
    except (ConfigurationError, WorkerStartError) as error:
        raise CommandError(str(error)) from None


def format_start_message(url: str, admin_url: str) -> str:
    return f"payout-gateway accepts connections on {url}, admin on {admin_url}"


async def _serve_single_process(settings: Settings) -> None:
    from gateway.server.connection import SHUTDOWN_IDLE_SECONDS
    from gateway.server.memory_tuning import tune_garbage_collector_and_malloc
    from gateway.server.shutdown import ProcessLifetime, install_shutdown_event

    stop_event, lifetime = install_shutdown_event(), ProcessLifetime()
    async with AsyncExitStack() as stack:
        running = await _start_gateway(stack, settings)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, running.reload_certificate)
        # After the start, whose objects live as long as the process.
        tune_garbage_collector_and_malloc()
        # Scripts and tests wait for this line, and stdout is buffered if it is a pipe.
        print(format_start_message(running.url, running.admin_url), flush=True)
        await stop_event.wait()
        lifetime.record_shutdown_start(requests_left=running.pending_request_count)
        await running.retire(SHUTDOWN_IDLE_SECONDS)
    lifetime.log_shutdown_complete()


async def _serve_demo(settings: Settings) -> None:
    from gateway.server.demo import format_demo_instructions, open_demo_settings
    from gateway.server.shutdown import ProcessLifetime, install_shutdown_event

    stop_event, lifetime = install_shutdown_event(), ProcessLifetime()
    async with AsyncExitStack() as stack:
        ready = await stack.enter_async_context(open_demo_settings(settings))
        running = await _start_gateway(stack, ready)
        print(format_demo_instructions(running), flush=True)
        await stop_event.wait()
        lifetime.record_shutdown_start(requests_left=running.pending_request_count)
    lifetime.log_shutdown_complete()


async def _start_gateway(stack: AsyncExitStack, settings: Settings) -> RunningGateway:
    from gateway.server.app import run_gateway
    from gateway.storage import StoreUnavailable

    try:
        return await stack.enter_async_context(run_gateway(settings))
    except (ConfigurationError, StoreUnavailable) as error:
        raise CommandError(str(error)) from None
