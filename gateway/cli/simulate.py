"""`payout-gateway simulate`: runs a simulator of the service's two interfaces."""

import asyncio
import errno
import json
import signal
from pathlib import Path
from typing import IO, Literal, cast, get_args

import click

from gateway.cli.options import config_file_option, load_command_settings
from gateway.simulator import (
    DEMO_API_KEY,
    DEMO_CREDENTIALS,
    WALLET_FUNDS,
    Deviation,
    ListenError,
    Service,
    ServiceCredentials,
    ServiceOptions,
    start_simulator,
)

# Only tests inspect recorded requests; a user of the command looks at the answers.
MAX_RECORDED_REQUESTS = 100
MAX_PORT = 65535


class CannotListen(click.ClickException):
    exit_code = 2


@click.command()
@click.option("--port", type=click.IntRange(0, MAX_PORT), default=8090, show_default=True)
@click.option(
    "--legacy-port",
    type=click.IntRange(0, MAX_PORT),
    help="Also serve the legacy interface on this port, with the same data.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--keys",
    "key_file",
    type=click.File(encoding="utf-8"),
    help="JSON lines as for `keys import`: merchant, environment, access_key, secret_key, "
    "and api_key for the legacy interface. "
    "Default: one public pair of demo credentials.",
)
@config_file_option
@click.option("--seed", type=int, help="Generate the same ids and recipients on each run.")
@click.option(
    "--recipients",
    "recipient_count",
    type=click.IntRange(min=0),
    default=0,
    help="Number of generated recipients for each merchant.",
)
@click.option(
    "--signed-target",
    type=click.Choice(["path", "path-and-query"]),
    default="path",
    show_default=True,
    help="The part of the URL that signatures cover.",
)
@click.option(
    "--account-number-with-iban",
    type=click.Choice(["optional", "required"]),
    default="optional",
    show_default=True,
    help="Whether an account with an IBAN also needs accountNum.",
)
@click.option("--lists-archived", is_flag=True, help="Include deleted recipients in lists.")
@click.option(
    "--validation-status",
    type=click.Choice(["400", "406"]),
    default="400",
    show_default=True,
    help="HTTP status of validation errors.",
)
@click.option(
    "--no-inferred",
    is_flag=True,
    help="Answer 404 for optional endpoints: listing, editing and deleting batches.",
)
@click.option(
    "--deviation",
    "deviations",
    type=click.Choice(get_args(Deviation)),
    multiple=True,
    help="Differ in this assumption of `rehearse`. May be given several times.",
)
@click.option("--bare", is_flag=True, help="Answer batch writes with an id only.")
@click.option(
    "--processing-seconds",
    type=click.FloatRange(min=0),
    default=2,
    show_default=True,
    help="Seconds that a started batch is processing.",
)
def simulate(
    *,
    port: int,
    legacy_port: int | None,
    host: str,
    key_file: IO[str] | None,
    config: Path | None,
    seed: int | None,
    recipient_count: int,
    signed_target: Literal["path", "path-and-query"],
    account_number_with_iban: Literal["optional", "required"],
    lists_archived: bool,
    validation_status: str,
    no_inferred: bool,
    deviations: tuple[Deviation, ...],
    bare: bool,
    processing_seconds: float,
) -> None:
    """Run a simulator of the payout service, with its current and its legacy interface.

    From the configuration, only the section `vocabulary` is used.
    """
    from gateway.server.demo import build_simulator_vocabulary

    switches = ServiceOptions(
        signed_target=signed_target,
        account_number_with_iban=account_number_with_iban,
        lists_archived=lists_archived,
        validation_status=cast("Literal[400, 406]", int(validation_status)),
        inferred=not no_inferred,
        answers="bare" if bare else "full",
        processing_seconds=processing_seconds,
        deviations=frozenset(deviations),
    )
    keys = [DEMO_CREDENTIALS] if key_file is None else parse_simulator_keys_file(key_file)
    service = Service(
        credentials=keys,
        options=switches,
        vocabulary=build_simulator_vocabulary(load_command_settings(config).vocabulary),
        seed=seed,
        max_kept_requests=MAX_RECORDED_REQUESTS,
        wallet_balance=WALLET_FUNDS,
    )
    # In file order, so that each merchant gets the same recipients on every run.
    for number, (merchant, environment) in enumerate(
        dict.fromkeys((key.merchant, key.environment) for key in keys)
    ):
        service.seed_recipients(
            # Another seed for each merchant, so that they do not have the same recipients.
            recipient_count,
            (seed or 0) + number,
            merchant=merchant,
            environment=environment,
        )
    asyncio.run(_run_simulator(service, host, port, legacy_port, with_demo_key=key_file is None))


async def _run_simulator(
    service: Service, host: str, port: int, legacy_port: int | None, *, with_demo_key: bool
) -> None:
    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop_event.set)
    try:
        simulator = await start_simulator(
            service=service, host=host, port=port, legacy_port=legacy_port
        )
    except ListenError as reason:
        in_use = reason.errno == errno.EADDRINUSE
        cause = "the port is in use; choose another" if in_use else reason.strerror or str(reason)
        raise CannotListen(f"Cannot listen on {host} port {reason.port}: {cause}") from reason
    click.echo(f"Simulator of the payout service at {simulator.url}")
    if simulator.legacy is not None:
        click.echo(f"Its legacy interface at {simulator.legacy.url}")
    if with_demo_key:
        click.echo(
            f"To use it with a gateway: echo '{_format_demo_key_line()}' | payout-gateway keys import -"
        )
    await stop_event.wait()
    await simulator.stop()


def _format_demo_key_line() -> str:
    return json.dumps(
        {
            "merchant": DEMO_CREDENTIALS.merchant,
            "environment": DEMO_CREDENTIALS.environment,
            "api_key": DEMO_API_KEY,
            "access_key": DEMO_CREDENTIALS.access_key,
            "secret_key": DEMO_CREDENTIALS.secret_key,
        }
    )


def parse_simulator_keys_file(lines: IO[str]) -> list[ServiceCredentials]:
    """Parses the ``--keys`` file. A UsageError names the invalid line, but never its contents."""
    try:
        numbered_lines = [
            (number, line) for number, line in enumerate(lines, start=1) if line.strip()
        ]
    except UnicodeDecodeError:
        raise click.UsageError("--keys: the file is not UTF-8") from None
    keys = [_parse_credentials_line(number, line) for number, line in numbered_lines]
    if not keys:
        raise click.UsageError("--keys: the file contains no keys")
    # Signatures identify the merchant by the access key, so it must be unique.
    if len({key.access_key for key in keys}) < len(keys):
        raise click.UsageError("--keys: an access_key occurs twice")
    tenants_by_api_key = {
        (key.api_key, key.merchant, key.environment) for key in keys if key.api_key
    }
    # Several lines may repeat a key of the same merchant.
    if len({api_key for api_key, *_ in tenants_by_api_key}) < len(tenants_by_api_key):
        raise click.UsageError("--keys: an api_key is used for two merchants or environments")
    return keys


def _parse_credentials_line(number: int, line: str) -> ServiceCredentials:
    try:
        fields = json.loads(line)
    except ValueError:
        raise click.UsageError(f"--keys: line {number} is not JSON") from None
    for name in ("merchant", "environment", "access_key", "secret_key"):
        if (
            not isinstance(fields, dict)
            or not isinstance(fields.get(name), str)
            or not fields[name]
        ):
            raise click.UsageError(f"--keys: line {number} has no {name}")
    api_key = fields.get("api_key", "")
    if not isinstance(api_key, str):
        raise click.UsageError(f"--keys: line {number}: api_key is not a string")
    return ServiceCredentials(
        fields["access_key"],
        fields["secret_key"],
        fields["merchant"],
        fields["environment"],
        api_key,
    )
