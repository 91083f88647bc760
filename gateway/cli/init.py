"""`payout-gateway init`: writes a first configuration, its encryption key and its admin token."""

import os
import secrets
from pathlib import Path

import click
from pydantic import ValidationError

from gateway.cli import CommandError
from gateway.config.sections import Environment
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
}


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
def init(*, directory: Path, environment: str, base_url: str | None) -> None:
    """Write gateway.toml, gateway.key and admin-token into DIRECTORY (default: this one).

    The files can be read by their owner only. An existing file is never overwritten: if there is
    one, nothing is written and the exit code is 2.
    """
    _check_base_url(base_url)
    url = base_url or DEFAULT_URLS[environment]
    configuration = CONFIGURATION.format(environment=environment, base_url=url)
    _write_files(
        directory, {"admin-token": secrets.token_urlsafe(32), "gateway.toml": configuration}
    )
    click.echo(f"Wrote these files to {directory.absolute()}; only their owner can read them:")
    for name, purpose in PURPOSES.items():
        click.echo(f"  {name:12}  {purpose}")
    click.echo(_describe_next_steps(directory, base_url))


def _check_base_url(base_url: str | None) -> None:
    if base_url is None:
        return
    try:
        Environment(base_url=base_url)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")
        # That is no option, and the file is not written yet.
        if "allow_http" in problem:
            problem += ": run this without --base-url, and edit gateway.toml"
        raise click.UsageError(f"--base-url: {problem}") from None


def _write_files(directory: Path, texts: dict[str, str]) -> None:
    # All before the first write, so that a refused run leaves nothing behind.
    for name in (*texts, "gateway.key"):
        if (directory / name).exists():
            raise CommandError(
                f"{directory / name} already exists, and init overwrites nothing; nothing was "
                "written. Choose another directory, or keep what is there"
            )
    created = []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in texts.items():
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            with os.fdopen(os.open(directory / name, flags, 0o600), "w") as file:
                created.append(directory / name)
                file.write(text)
        create_key_file(directory / "gateway.key")
    except (OSError, StoreUnavailable) as error:
        for path in created:
            path.unlink()
        if isinstance(error, StoreUnavailable):
            raise CommandError(str(error)) from None
        raise CommandError(
            f"{directory.absolute()} cannot be written ({error.strerror}); nothing was written. Use "
            "a directory of your own, on a disk with free space"
        ) from None


def _describe_next_steps(directory: Path, base_url: str | None) -> str:
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
