"""`payout-gateway simulate`: runs a simulator of the service's two interfaces."""

import asyncio
import errno
import json
from dataclasses import asdict, fields
from typing import BinaryIO

import click

from gateway.cli import CommandError, options
from gateway.config.settings import Settings
from gateway.simulator import (
    DEMO_CREDENTIALS,
    WALLET_FUNDS,
    ListenError,
    Service,
    ServiceCredentials,
    start_simulator,
)

MAX_PORT = 65535


@click.command()
@click.option("--port", type=click.IntRange(0, MAX_PORT), default=8090, show_default=True)
@click.option(
    "--legacy-port",
    type=click.IntRange(0, MAX_PORT),
    help="Also serve the legacy interface on this port, with the same data.",
)
@click.option(
    "--keys",
    "key_file",
    type=click.File("rb"),
    help="JSON lines as for `keys import`. Default: one public pair of demo credentials.",
)
@options.config_option
def simulate(
    *,
    port: int,
    legacy_port: int | None,
    key_file: BinaryIO | None,
    settings: Settings,
) -> None:
    """Run a simulator of the payout service, with its current and its legacy interface.

    From the configuration, only the section `vocabulary` is used.
    """
    from gateway.server.demo import build_simulator_vocabulary

    keys = [DEMO_CREDENTIALS] if key_file is None else _parse_keys(key_file.read())
    service = Service(
        credentials=keys,
        vocabulary=build_simulator_vocabulary(settings.vocabulary),
        wallet_balance=WALLET_FUNDS,
    )
    asyncio.run(_run_simulator(service, port, legacy_port, with_demo_key=key_file is None))


async def _run_simulator(
    service: Service, port: int, legacy_port: int | None, *, with_demo_key: bool
) -> None:
    from gateway.server.process import install_shutdown_event

    stop_event = install_shutdown_event()
    try:
        simulator = await start_simulator(service=service, port=port, legacy_port=legacy_port)
    except ListenError as reason:
        in_use = reason.errno == errno.EADDRINUSE
        cause = "the port is in use; choose another" if in_use else reason.strerror or str(reason)
        raise CommandError(f"Cannot listen on port {reason.port}: {cause}") from reason
    click.echo(f"Simulator of the payout service at {simulator.url}")
    if simulator.legacy_url:
        click.echo(f"Its legacy interface at {simulator.legacy_url}")
    if with_demo_key:
        line = json.dumps(asdict(DEMO_CREDENTIALS))
        click.echo(f"To use it with a gateway: echo '{line}' | payout-gateway keys import -")
    await stop_event.wait()
    await simulator.stop()


def _parse_keys(data: bytes) -> list[ServiceCredentials]:
    from gateway.auth.key_lines import ImportRefused, parse_key_lines

    try:
        keys = [line.key for line in parse_key_lines(data)]
    except ImportRefused as error:
        raise click.UsageError(f"--keys: {error}") from None
    names = {each.name for each in fields(ServiceCredentials)}
    return [ServiceCredentials(**key.model_dump(include=names)) for key in keys]
