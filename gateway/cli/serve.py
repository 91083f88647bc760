"""`payout-gateway serve`: runs the gateway, with a configuration or as a demo."""

import asyncio
import signal
from contextlib import nullcontext
from pathlib import Path

import click

from gateway.cli import CommandError, options
from gateway.config.settings import Settings

NO_CONFIGURATION = (
    "no configuration: there is no gateway.toml in this directory, and no PAYOUT_GATEWAY_… "
    "variable configures an environment. Run `payout-gateway init`, or try `serve --demo`"
)


@click.command()
@click.option(
    "--config", type=options.FILE, help="Configuration file. Default: gateway.toml if it exists."
)
@click.option("--demo", is_flag=True, help="Run against the built-in simulator, on loopback only.")
@click.option("--traffic", is_flag=True, help="With --demo: send sample requests all the time.")
def serve(*, config: Path | None, demo: bool, traffic: bool) -> int:
    """Run the gateway until it receives SIGTERM or SIGINT.

    SIGHUP reloads the TLS certificate.
    """
    import uvloop

    from gateway.observability import logs

    if traffic and not demo:
        raise click.UsageError("--traffic is for --demo only")
    if demo and config:
        raise click.UsageError("--demo uses its own configuration; omit --config")
    # From the beginning: a reload may be asked for before the gateway is ready, and would end the
    # process. For systemd that is a clean end, after which it is not restarted.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = options.load_command_settings(config)
    has_environment = bool(settings.environments.map_configured_environments_by_name())
    if not (demo or has_environment or settings.config_file.path):
        raise CommandError(NO_CONFIGURATION)
    # Not earlier: errors of the configuration are plain text for the operator.
    logs.configure_logging(level=settings.logs.level, line_format=settings.logs.format)
    if settings.server.workers > 1 and not demo:
        from gateway.server.workers.supervisor import supervise_workers

        return asyncio.run(supervise_workers(settings, announce_start))
    # A single process; the demo ignores server.workers.
    uvloop.run(
        _serve_demo(settings, has_traffic=traffic) if demo else _serve_single_process(settings)
    )
    return 0


def announce_start(url: str, admin_url: str) -> None:
    # Scripts and tests wait for this line, and stdout is buffered if it is a pipe.
    print(f"payout-gateway accepts connections on {url}, admin on {admin_url}", flush=True)


async def _serve_single_process(settings: Settings) -> None:
    from gateway.server.app import run_process

    async with run_process(settings) as (running, stop_event):
        announce_start(running.url, running.admin_url)
        await stop_event.wait()


async def _serve_demo(settings: Settings, *, has_traffic: bool) -> None:
    from gateway.server.app import run_process
    from gateway.server.demo import (
        format_demo_instructions,
        open_demo_settings,
        send_sample_traffic,
    )

    async with (
        open_demo_settings(settings) as demo_settings,
        run_process(demo_settings) as (running, stop_event),
    ):
        # Otherwise a demo without its terminal would go on running, and hold the ports.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop_event.set)
        print(format_demo_instructions(running), flush=True)
        traffic = send_sample_traffic(running.url) if has_traffic else nullcontext()
        async with traffic:
            await stop_event.wait()
