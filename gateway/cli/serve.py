"""`payout-gateway serve`: the gateway, on a configuration or as a demo."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.configured import CONFIG, settings_of
from gateway.cli.mistakes import Mistake
from gateway.settings import Misconfigured, Settings

if TYPE_CHECKING:
    from gateway.app import Running

NO_CONFIGURATION = (
    "no configuration: there is no gateway.toml here and no PAYOUT_GATEWAY_… variable names an "
    "environment. Write one (deploy/gateway.example.toml is a start), or try `serve --demo`"
)


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help=f"Default: {CONFIG}"
)
@click.option("--demo", is_flag=True, help="Run against a built-in simulator, on loopback only.")
def serve(*, config: Path | None, demo: bool) -> None:
    """Run the gateway until it is told to end (SIGTERM)."""
    import uvloop

    from gateway import logs

    if demo and config:
        raise click.UsageError("--demo brings its own configuration; leave out --config")
    settings = settings_of(config)
    if (
        not demo
        and not settings.environments.configured()
        and config is None
        and not CONFIG.exists()
    ):
        raise Mistake(NO_CONFIGURATION)
    logs.configure()
    uvloop.run(_demo(settings) if demo else _serve(settings))


async def _serve(settings: Settings) -> None:
    from gateway.app import told_to_end

    told = told_to_end()
    async with AsyncExitStack() as stack:
        running = await _running(stack, settings)
        print(
            f"payout-gateway accepts connections on {running.url}, admin on {running.admin_url}",
            flush=True,
        )
        await told.wait()


async def _demo(settings: Settings) -> None:
    from gateway.app import told_to_end
    from gateway.demo import demo_settings, instructions

    told = told_to_end()
    async with AsyncExitStack() as stack:
        ready = await stack.enter_async_context(demo_settings(settings))
        running = await _running(stack, ready)
        print(instructions(running), flush=True)
        await told.wait()


async def _running(stack: AsyncExitStack, settings: Settings) -> Running:
    from gateway.app import run
    from gateway.store import StoreUnavailable

    try:
        return await stack.enter_async_context(run(settings))
    except (Misconfigured, StoreUnavailable) as error:
        raise Mistake(str(error)) from None
