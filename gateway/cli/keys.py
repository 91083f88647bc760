"""`payout-gateway keys`: which API keys there are, and the pairs that they stand for."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from gateway.auth.signing import extract_key_prefix, shorten_key
from gateway.cli.command_group import Commands
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.auth.key_import import Imported
    from gateway.auth.key_lines import Numbered
    from gateway.auth.key_rows import ListedKey
    from gateway.auth.keys import Checked
    from gateway.auth.signing import Credentials
    from gateway.storage import Store, Tenant

ADDED = (
    "Now, before anything else is written: give every instance the file, and end and start every "
    "gateway on this state. One that runs on cannot read what is encrypted with the new key."
)

Done = TypeVar("Done")


class NotReplaced(Mistake):
    """A pair that the service speaks against."""

    exit_code = 1


_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


@click.group(cls=Commands)
def keys() -> None:
    """API keys and the pairs that they stand for."""


@keys.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--reactivate", is_flag=True, help="Bring keys of the file back that were revoked.")
@config_option
def import_(*, file: BinaryIO, reactivate: bool, settings: Settings) -> None:
    """Import keys from FILE (- is stdin): all of them, or none.

    Each line is a JSON object: {"merchant", "environment", "api_key", "access_key", "secret_key",
    "name"?, "requests_per_hour"?, "allowed_ips"?}. A key that is there already is updated; what
    its line leaves out stays as it is, null sets it back. No allowed_ips is any address.
    """
    from gateway.auth.key_import import import_keys
    from gateway.auth.key_lines import ImportRefused, parse_key_lines
    from gateway.storage import open_store

    async def done(lines: Sequence[Numbered]) -> Imported:
        async with open_store(settings.state) as store:
            return await import_keys(store, lines, reactivate=reactivate)

    key_file = settings.state.encryption_key_file
    was_there = key_file.exists()
    try:
        lines = parse_key_lines(file.read())
        imported = run_to_completion(done(lines), "Importing")
    except ImportRefused as error:
        name = getattr(file, "name", "<stdin>")
        raise Mistake(f"{name}: {error}; nothing was imported") from None
    if not was_there:
        told = f"Made {key_file.absolute()}: back it up, without it the state cannot be read"
        click.echo(told, err=True)
    counts = f"{imported.new} new, {imported.changed} changed, {imported.unchanged} unchanged"
    whom = ", ".join(f"{n} of {owner}" for owner, n in sorted(imported.owners.items()))
    click.echo(f"Imported {pluralize(len(lines), 'key')} ({counts}): {whom}")
    _warn_of_unconfigured(settings, imported.owners)


def _warn_of_unconfigured(settings: Settings, owners: Iterable[Tenant]) -> None:
    configured = settings.environments.configured()
    for name in sorted({owner.environment for owner in owners} - set(configured)):
        click.echo(
            f"Warning: [environments.{name}] is not configured: its keys work once it is", err=True
        )


@keys.command("list")
@_json
@config_option
def list_(*, as_json: bool, settings: Settings) -> None:
    """List the keys, each by its first letters; none of it is secret."""
    from gateway.auth.key_rows import load_listed_keys
    from gateway.storage import open_store

    async def done() -> Sequence[ListedKey]:
        async with open_store(settings.state, create=False) as store:
            return await load_listed_keys(store)

    listed = run_to_completion(done())
    if as_json:
        click.echo(json.dumps({"keys": [_as_json(key) for key in listed]}, indent=2))
        return
    heads = ["name", "key", "merchant", "environment", "access key", "per hour", "addresses"]
    print_table([*heads, "created", "revoked"], [_as_row(key) for key in listed])


def _as_json(key: ListedKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "merchant": key.merchant,
        "environment": key.environment,
        "access_key_prefix": extract_key_prefix(key.access_key),
        "requests_per_hour": key.requests_per_hour,
        "allowed_ips": list(key.allowed_ips),
        "created_at": _moment(key.created_at),
        "revoked_at": _moment(key.revoked_at) or None,
    }


def _as_row(key: ListedKey) -> list[str]:
    return [
        key.name,
        f"{key.prefix}…",
        key.merchant,
        key.environment,
        shorten_key(key.access_key),
        str(key.requests_per_hour or "default"),
        " ".join(key.allowed_ips) or "any",
        _moment(key.created_at),
        _moment(key.revoked_at) or "-",
    ]


@keys.command("revoke")
@click.argument("name_or_prefix")
@config_option
def revoke_(*, name_or_prefix: str, settings: Settings) -> None:
    """Have running gateways refuse a key, within about two seconds."""
    from gateway.auth.key_rows import revoke_key
    from gateway.storage import open_store

    async def done() -> str:
        async with open_store(settings.state, create=False) as store:
            key = await find_single_key(store, name_or_prefix)
            if key.revoked_at:
                return f"{key.name} was revoked at {_moment(key.revoked_at)} already"
            await revoke_key(store, key.id)
            return f"Revoked {key.name} ({key.owner})"

    click.echo(run_to_completion(done()))


@keys.command("rotate-secret")
@click.argument("name_or_prefix")
@click.option("--no-verify", is_flag=True, help="Do not ask the service whose account it is.")
@config_option
def rotate_secret(*, name_or_prefix: str, no_verify: bool, settings: Settings) -> None:
    """Replace the pair of a key's merchant and environment.

    The new pair is read from stdin as JSON, {"access_key", "secret_key"}, or asked for on a
    terminal. It has to see the oldest recipients that the stored pair sees, or nothing is
    replaced (exit 1).
    """
    from gateway.auth.key_rows import AccessKeyTaken, load_credentials, replace_credentials
    from gateway.storage import open_store

    async def done() -> str:
        async with open_store(settings.state, create=False) as store:
            key = await find_single_key(store, name_or_prefix)
            new = _asked_pair()
            if not no_verify:
                await _verify_new(
                    settings, key.owner, await load_credentials(store, key.owner), new
                )
            await replace_credentials(store, key.owner, new)
            return f"Replaced the pair of {key.owner} by {shorten_key(new.access_key)}"

    try:
        click.echo(run_to_completion(done()))
    except AccessKeyTaken:
        raise Mistake("another merchant's keys stand for this access key already") from None


def _asked_pair() -> Credentials:
    from gateway.auth.key_lines import ImportRefused, parse_credentials

    if sys.stdin.isatty():
        asked = {
            "access_key": click.prompt("Access key", err=True, hide_input=True),
            "secret_key": click.prompt("Secret key", err=True, hide_input=True),
        }
        written = json.dumps(asked).encode()
    else:
        written = sys.stdin.buffer.read()
    try:
        return parse_credentials(written)
    except ImportRefused as error:
        raise Mistake(f"<stdin>: {error}") from None


async def _verify_new(
    settings: Settings, owner: Tenant, old: Credentials, new: Credentials
) -> None:
    from gateway.auth.keys import look, why_not_replaced
    from gateway.upstream.client import open_upstream

    async with open_upstream(settings) as upstream:
        seen_before, seen_now = await asyncio.gather(
            look(upstream, owner.environment, old), look(upstream, owner.environment, new)
        )
    if why := why_not_replaced(seen_before, seen_now):
        raise NotReplaced(f"{why}; nothing was replaced (--no-verify replaces it anyway)")
    if not seen_now.recipients:
        click.echo(f"Warning: whose account it is was not told: {seen_now.told}", err=True)


@keys.command("verify")
@click.argument("names_or_prefixes", nargs=-1)
@_json
@config_option
def verify_(*, names_or_prefixes: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Check pairs against the service, by reads only (exit 1 on findings).

    Without names, the pairs of all keys in use. Pairs are compared with one another, so that one
    account under two merchant names is found.
    """
    from gateway.auth.key_rows import load_listed_keys
    from gateway.auth.keys import check_credentials, describe_credential_problems
    from gateway.storage import open_store
    from gateway.upstream.client import open_upstream

    async def done() -> list[Checked]:
        async with open_store(settings.state, create=False) as store:
            chosen = [await find_single_key(store, word) for word in names_or_prefixes]
            those = chosen or [
                key for key in await load_listed_keys(store) if key.revoked_at is None
            ]
            async with open_upstream(settings) as upstream:
                return await check_credentials(store, upstream, those)

    checked = run_to_completion(done(), "Trying the pairs")
    findings = describe_credential_problems(checked)
    if as_json:
        pairs = [_as_checked(pair) for pair in checked]
        click.echo(json.dumps({"ok": not findings, "pairs": pairs, "findings": findings}, indent=2))
    else:
        rows = [[*pair.owner, f"{pair.access_key_prefix}…", pair.sight.told] for pair in checked]
        print_table(["merchant", "environment", "access key", "result"], rows)
        for finding in findings:
            click.echo(f"Finding: {finding}")
    if findings:
        click.get_current_context().exit(1)


def _as_checked(pair: Checked) -> dict[str, Any]:
    return {
        **pair.owner._asdict(),
        "access_key_prefix": pair.access_key_prefix,
        "keys": list(pair.keys),
        "result": pair.sight.result,
        "detail": pair.sight.told,
    }


@keys.command("new-encryption-key")
@click.option("--add", is_flag=True, help="Add a key to the file that is there.")
@config_option
def new_encryption_key(*, add: bool, settings: Settings) -> None:
    """Make the key file (state.encryption_key_file), or add a key to it.

    The last key of the file encrypts what is written; all of them decrypt. Give every instance
    the file before any is started with it, and back it up apart from the database. A gateway that
    runs knows a key that was added once it is started again: until then it cannot read what other
    commands write.
    """
    from gateway.storage import StoreUnavailable
    from gateway.storage.keyfile import add_key, make_key_file

    file = settings.state.encryption_key_file
    if file.exists() and not add:
        raise Mistake(f"{file} is there already; --add adds a key, which encrypts from then on")
    try:
        add_key(file) if add else make_key_file(file)
    except StoreUnavailable as error:
        raise Mistake(str(error)) from None
    click.echo(f"{'Added a key to' if add else 'Made'} {file}")
    if add:
        click.echo(ADDED)


# What the commands have in common.


async def find_single_key(store: Store, word: str) -> ListedKey:
    """The key that a word means. The word is never repeated: it might be a whole key."""
    from gateway.auth.key_rows import find_matching_keys as chosen
    from gateway.auth.key_rows import load_listed_keys

    found = chosen(await load_listed_keys(store), word)
    if not found:
        raise Mistake("no key has this name or begins so; `keys list` shows what there is")
    if len(found) > 1:
        raise Mistake(f"{len(found)} keys begin so: {', '.join(key.name for key in found)}")
    return found[0]


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else ""
