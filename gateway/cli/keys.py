"""`payout-gateway keys`: manages API keys and the credentials that they map to."""

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import click

from gateway.auth.key_import import ImportResult, import_keys
from gateway.auth.key_lines import ImportRefused, NumberedLine, parse_credentials, parse_key_lines
from gateway.auth.key_rows import (
    ListedKey,
    find_single_key,
    load_credentials,
    load_listed_keys,
    replace_credentials,
    revoke_key,
)
from gateway.auth.signing import Credentials, extract_displayable_key_prefix
from gateway.cli import CommandError, options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time, pluralize
from gateway.operator.account_checks import (
    CredentialCheck,
    describe_credential_problems,
    find_credentials_replacement_problem,
    probe_account,
    probe_tenant_credentials,
)
from gateway.storage import Store, StoreUnavailable, Tenant, open_store
from gateway.storage.key_file import add_encryption_key, create_key_file
from gateway.upstream.client import open_upstream_client

MAX_SHOWN_TENANTS = 10
"""Tenants that `keys import` prints with their number of keys."""

AFTER_ADDING_KEY = (
    "Next, before anything else is written: copy the file to every instance and restart every "
    "gateway that uses this state. A running gateway cannot read data encrypted with the new key."
)


class CredentialsNotReplaced(CommandError):
    """Raised if the service does not confirm that the new credentials are of the same account."""

    exit_code = 1


@click.group(cls=options.FullHelpGroup)
def keys() -> None:
    """Manage API keys and the credentials that they map to."""


@keys.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--reactivate", is_flag=True, help="Re-enable revoked keys that are in the file.")
@options.config_option
def import_api_keys(*, file: BinaryIO, reactivate: bool, settings: Settings) -> None:
    """Import keys from FILE (- is stdin). Either all keys are imported or none.

    Each line is a JSON object: {"merchant", "environment", "api_key", "access_key", "secret_key",
    "name"?, "requests_per_hour"?, "allowed_ips"?}. An existing key is updated: fields that its line
    omits are unchanged, null resets them to the default. Without allowed_ips, any address may use
    the key.
    """

    async def save_keys(lines: Sequence[NumberedLine]) -> ImportResult:
        # Unlike most commands, this one may create the state: it is the first that a new gateway
        # needs.
        async with open_store(settings.state) as store:
            return await import_keys(store, lines, reactivate=reactivate)

    key_file = settings.state.encryption_key_file
    # The first import creates the key file; the user must know that it has to be backed up.
    had_key_file = key_file.exists()
    try:
        lines = parse_key_lines(file.read())
        imported = output.run_to_completion(save_keys(lines), "Importing")
    except ImportRefused as error:
        # Names the file and the line, never their contents.
        name = getattr(file, "name", "<stdin>")
        raise CommandError(f"{name}: {error}; nothing was imported") from None
    if not had_key_file:
        notice = f"Created {key_file.absolute()}. Back it up: without it the state cannot be read"
        click.echo(notice, err=True)
    counts = f"{imported.new} new, {imported.changed} changed, {imported.unchanged} unchanged"
    counts_by_tenant = [
        f"{count} of {tenant}" for tenant, count in sorted(imported.keys_by_tenant.items())
    ]
    if (more := len(counts_by_tenant) - MAX_SHOWN_TENANTS) > 0:
        counts_by_tenant[MAX_SHOWN_TENANTS:] = [f"… and {more} more"]
    shown_counts = ", ".join(counts_by_tenant)
    click.echo(f"Imported {pluralize(len(lines), 'key')} ({counts}): {shown_counts}")
    environments = {tenant.environment for tenant in imported.keys_by_tenant}
    for name in sorted(environments - {*settings.environments.map_base_urls_by_environment()}):
        warning = f"[environments.{name}] is not configured; its keys are refused until it is"
        click.echo(f"Warning: {warning}", err=True)


@keys.command("list")
@options.json_option
@options.config_option
def list_api_keys(*, as_json: bool, settings: Settings) -> None:
    """List API keys. Only prefixes are shown, no secrets."""
    api_keys = output.run_with_store(settings, load_listed_keys)
    if as_json:
        options.print_json({"keys": [_build_key_json(key) for key in api_keys]})
        return
    headers = ["name", "key", "merchant", "environment", "access key", "per hour", "addresses"]
    output.print_table([*headers, "created", "revoked"], map(_build_key_row, api_keys))


def _build_key_json(key: ListedKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "prefix": key.prefix,
        "merchant": key.merchant,
        "environment": key.environment,
        "access_key_prefix": extract_displayable_key_prefix(key.access_key),
        "requests_per_hour": key.requests_per_hour,
        "allowed_ips": list(key.allowed_ips),
        "created_at": format_time(key.created_at),
        "revoked_at": format_time(key.revoked_at) if key.revoked_at else None,
    }


def _build_key_row(key: ListedKey) -> list[object]:
    shown = {
        "prefix": f"{key.prefix}…",
        "access_key_prefix": f"{extract_displayable_key_prefix(key.access_key)}…",
        "requests_per_hour": key.requests_per_hour or "default",
        "allowed_ips": " ".join(key.allowed_ips) or "any",
    }
    return [*(_build_key_json(key) | shown).values()]


@keys.command("revoke")
@click.argument("name_or_prefix")
@options.config_option
def revoke_api_key(*, name_or_prefix: str, settings: Settings) -> None:
    """Revoke an API key. Running gateways refuse it within about two seconds."""

    async def save_revocation(store: Store) -> str:
        key = find_single_key(await load_listed_keys(store), name_or_prefix)
        if key.revoked_at:
            return f"{key.name} was already revoked at {format_time(key.revoked_at)}"
        await revoke_key(store, key.id)
        return f"Revoked {key.name} ({key.tenant})"

    click.echo(output.run_with_store(settings, save_revocation))


@keys.command("rotate-secret")
@click.argument("name_or_prefix")
@click.option(
    "--no-verify",
    is_flag=True,
    help="Do not check that the new credentials are of the same account.",
)
@options.config_option
def replace_tenant_credentials(*, name_or_prefix: str, no_verify: bool, settings: Settings) -> None:
    """Replace the credentials of a key's merchant and environment.

    Reads {"access_key", "secret_key"} as JSON from stdin, or prompts on a terminal. The new
    credentials must see the same oldest recipients as the stored ones; otherwise nothing is
    replaced and the exit code is 1.
    """

    async def verify_and_replace_credentials(store: Store) -> str:
        key = find_single_key(await load_listed_keys(store), name_or_prefix)
        # Read before anything is sent, so that a malformed input changes nothing.
        new = _read_new_credentials()
        if not no_verify:
            old = await load_credentials(store, key.tenant)
            await _verify_same_account(settings, key.tenant, old, new)
        # All keys of a merchant and environment share these credentials.
        await replace_credentials(store, key.tenant, new)
        shown = f"{new.access_key_prefix}…"
        return f"Replaced the credentials of {key.tenant}; the new access key is {shown}"

    click.echo(output.run_with_store(settings, verify_and_replace_credentials))


def _read_new_credentials() -> Credentials:
    # Secrets come from stdin or a hidden prompt, never from arguments.
    if sys.stdin.isatty():
        answers = {
            "access_key": click.prompt("Access key", err=True, hide_input=True),
            "secret_key": click.prompt("Secret key", err=True, hide_input=True),
        }
        data = json.dumps(answers).encode()
    else:
        data = sys.stdin.buffer.read()
    try:
        return parse_credentials(data)
    except ImportRefused as error:
        raise CommandError(f"<stdin>: {error}") from None


async def _verify_same_account(
    settings: Settings, tenant: Tenant, old: Credentials, new: Credentials
) -> None:
    async with open_upstream_client(settings.limit_calls_of_checks()) as upstream:
        # Both are read now: the account may have changed since the stored ones were imported.
        seen_before, seen_now = await asyncio.gather(
            probe_account(upstream, tenant.environment, old),
            probe_account(upstream, tenant.environment, new),
        )
    if reason := find_credentials_replacement_problem(seen_before, seen_now):
        raise CredentialsNotReplaced(
            f"{reason}; nothing was replaced. Use --no-verify only if the service's dashboard shows that "
            "the new credentials are of the same merchant: otherwise another account would pay"
        )
    # An account without recipients matches every other: there is nothing to compare.
    if not seen_now.recipients:
        click.echo(f"Warning: the account could not be compared: {seen_now.description}", err=True)


@keys.command("verify")
@click.argument("names_or_prefixes", nargs=-1)
@options.json_option
@options.config_option
def verify_credentials(
    *, names_or_prefixes: tuple[str, ...], as_json: bool, settings: Settings
) -> None:
    """Verify credentials against the service, with reads only.

    Without arguments, verifies the credentials of all keys that are not revoked. Credentials are
    also compared with each other, to find one account under two merchant names. Exit code 1 if
    there are findings.
    """

    async def check_listed_keys(store: Store) -> list[CredentialCheck]:
        # All before the first call, so that a wrong name is reported at once.
        listed_keys = await load_listed_keys(store)
        keys_to_check = [find_single_key(listed_keys, word) for word in names_or_prefixes]
        keys_to_check = keys_to_check or [key for key in listed_keys if key.revoked_at is None]
        async with open_upstream_client(settings.limit_calls_of_checks()) as upstream:
            return await probe_tenant_credentials(store, upstream, keys_to_check)

    results = output.run_with_store(settings, check_listed_keys, "Verifying")
    findings = describe_credential_problems(results)
    if as_json:
        entries = [_build_result_json(result) for result in results]
        options.print_json({"ok": not findings, "pairs": entries, "findings": findings})
    else:
        rows = [
            [*result.tenant, f"{result.access_key_prefix}…", result.probe.description]
            for result in results
        ]
        output.print_table(["merchant", "environment", "access key", "result"], rows)
        for finding in findings:
            click.echo(f"Finding: {finding}")
    if findings:
        click.get_current_context().exit(1)


def _build_result_json(result: CredentialCheck) -> dict[str, Any]:
    return {
        **result.tenant._asdict(),
        "access_key_prefix": result.access_key_prefix,
        "keys": list(result.key_names),
        "result": result.probe.result,
        "detail": result.probe.description,
    }


@keys.command("new-encryption-key")
@click.option("--add", is_flag=True, help="Add a key to the existing file.")
@options.config_option
def new_encryption_key(*, add: bool, settings: Settings) -> None:
    """Create the key file (state.encryption_key_file), or add a key to it.

    The last key in the file encrypts new data; all keys decrypt. Copy the file to every instance
    before you start one with it, and back it up separately from the database. A running gateway
    reads an added key only when it restarts; until then it cannot read what other commands write.
    """
    file = settings.state.encryption_key_file
    if file.exists() and not add:
        raise CommandError(
            f"{file} already exists, and one key is enough. Only if it has leaked, add another one, "
            "which encrypts all new data: --add"
        )
    try:
        add_encryption_key(file) if add else create_key_file(file)
    except StoreUnavailable as error:
        raise CommandError(str(error)) from None
    click.echo(f"{'Added a key to' if add else 'Created'} {file}")
    if add:
        click.echo(AFTER_ADDING_KEY)
