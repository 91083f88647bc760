"""`payout-gateway init`: writes a first configuration, its encryption key and its admin token."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click
from pydantic import ValidationError

from gateway.cli import CommandError
from gateway.config.settings import Environment
from gateway.storage import StoreUnavailable
from gateway.storage.key_file import create_key_file

DEFAULT_URLS = {
    "live": "https://service.example",
    "sandbox": "https://sandbox.service.example",
}

CONFIGURATION = """\
# Written by `payout-gateway init`; deploy/gateway.example.toml has every key. Relative paths are relative to the
# directory in which a command runs, so run all commands in this one.
[server]
host = "127.0.0.1"                   # 0.0.0.0 for clients on other machines
port = 8080
admin_port = 8081                    # health, metrics and console; on loopback
admin_token_file = "admin-token"

[environments.{environment}]
base_url = "{base_url}"   # your service's address, without /v1

[state]
url = "sqlite:///gateway.db"
encryption_key_file = "gateway.key"
"""

PURPOSES = {
    "admin-token": "what the console asks for, and Prometheus sends as a bearer token",
    "gateway.key": "the encryption key: back it up with the database; neither is of use without it",
    "gateway.toml": "the configuration",
    "grafana-password": "the password of Grafana's user admin",
    "postgres-password": "the password of PostgreSQL",
    "prometheus-token": "the admin token again, for Prometheus",
    "state-url": "the address of the database",
}

COMPOSE = "docker compose -f deploy/compose.yaml"

COMPOSE_OWNERS = {
    "gateway.key": 10001,
    "admin-token": 10001,
    "state-url": 10001,
    "postgres-password": 999,
    "prometheus-token": 65534,
    "grafana-password": 472,
}
"""The files of ``--compose``, and the user id of the only container that reads each."""


@click.command()
@click.argument(
    "directory", type=click.Path(file_okay=False, path_type=Path), default=Path(), required=False
)
@click.option(
    "--environment",
    type=click.Choice(list(DEFAULT_URLS)),
    default="sandbox",
    show_default=True,
    help="The environment that the configuration has.",
)
@click.option("--base-url", metavar="URL", help="The address of its service, without /v1.")
@click.option(
    "--compose",
    is_flag=True,
    help="Write the secrets of deploy/compose.yaml instead; as root, each for its container's user.",
)
def init(*, directory: Path, environment: str, base_url: str | None, compose: bool) -> None:
    """Write gateway.toml, gateway.key and admin-token into DIRECTORY (default: this one).

    The files can be read by their owner only. An existing file is never overwritten: if there is
    one, nothing is written and the exit code is 2.
    """
    _check_base_url(base_url)
    token = secrets.token_urlsafe(32)
    if compose:
        password = secrets.token_urlsafe(32)
        texts = {
            "admin-token": token,
            "prometheus-token": token,
            "postgres-password": password,
            "grafana-password": secrets.token_urlsafe(16),
            "state-url": f"postgresql://gateway:{password}@postgres/gateway",
        }
    else:
        url = base_url or DEFAULT_URLS[environment]
        configuration = CONFIGURATION.format(environment=environment, base_url=url)
        texts = {"admin-token": token, "gateway.toml": configuration}
    _write_files(directory, texts)
    if compose:
        _assign_owners(directory)
    click.echo(f"Wrote these files to {directory.absolute()}; only their owner can read them:")
    for name in sorted({*texts, "gateway.key"}):
        click.echo(f"  {name:17}  {PURPOSES[name]}")
    click.echo(_describe_next_steps(directory, base_url, compose=compose))


def _check_base_url(base_url: str | None) -> None:

    if base_url is None:
        return
    try:
        Environment(base_url=base_url)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"--base-url: {problem}") from None


def _write_files(directory: Path, texts: dict[str, str]) -> None:

    # All before the first write, so that a refused run leaves nothing behind.
    for name in (*texts, "gateway.key"):
        if (directory / name).exists():
            raise CommandError(
                f"{directory / name} already exists, and init overwrites nothing; nothing was "
                "written. Choose another directory, or keep what is there"
            )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in texts.items():
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            with os.fdopen(os.open(directory / name, flags, 0o600), "w") as file:
                file.write(text)
        create_key_file(directory / "gateway.key")
    except OSError as error:
        raise CommandError(
            f"{directory.absolute()} cannot be written ({error.strerror}); choose a directory of "
            "your own"
        ) from None
    except StoreUnavailable as error:
        raise CommandError(str(error)) from None


def _assign_owners(directory: Path) -> None:
    directory.chmod(0o700)
    # Without root, containers cannot read the files; the next steps say so.
    if os.geteuid() == 0:
        for name, user_id in COMPOSE_OWNERS.items():
            os.chown(directory / name, user_id, user_id)


def _describe_next_steps(directory: Path, base_url: str | None, *, compose: bool) -> str:
    if compose:
        steps = [
            "set base_url in deploy/compose/gateway.toml to your service's address",
            f"{COMPOSE} up --detach --wait",
            f"{COMPOSE} exec --no-TTY gateway payout-gateway keys import - < keys.jsonl",
        ]
        if os.geteuid() != 0:
            steps.insert(0, "as root, give each file to its container's user; see deploy/README.md")
    else:
        steps = [
            *([] if directory == Path() else [f"cd {directory}"]),
            *([] if base_url else ["set base_url in gateway.toml to your service's address"]),
            "payout-gateway keys import keys.jsonl     # one line for each legacy API key; see deploy/starting.md",
            "payout-gateway doctor                     # tries the service, with reads only",
            "payout-gateway serve",
        ]
    return "\n".join(
        ["", "Next:", *(f"  {number}. {step}" for number, step in enumerate(steps, 1))]
    )
