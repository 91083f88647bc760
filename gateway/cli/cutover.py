"""`payout-gateway cutover`: imports data that only the legacy service has, before it ends."""

import os
from typing import IO, Any

import click

from gateway.auth.key_rows import find_single_key, load_listed_keys
from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.cli import CommandError, options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.cutover import RESULTS, ImportOptions, ImportReport, open_cutover
from gateway.operator.legacy_reads import LegacyReadFailed
from gateway.storage import Store
from mappings.failures import Failure

API_KEY_VARIABLE = "LEGACY_API_KEY"
DEFAULT_REQUESTS_PER_HOUR = 5000
"""Requests per hour: half of the legacy service's rate limit for a key."""


@click.group(cls=options.FullHelpGroup)
def cutover() -> None:
    """Prepare a cutover before the legacy service ends."""


@cutover.command("import")
@click.option("--key", "name", required=True, metavar="NAME", help="The merchant's key, by name.")
@click.option(
    "--api-key-file",
    type=click.File("r"),
    help=f"A file that contains the API key, or - for standard input. Default: ${API_KEY_VARIABLE}.",
)
@click.option(
    "--dry-run",
    "is_dry_run",
    is_flag=True,
    help="Change nothing; only report what would change.",
)
@click.option(
    "--move-open-batches",
    "is_moving_open_batches",
    is_flag=True,
    help="Also move open batches that were created at the legacy service: translate their "
    "requests.",
)
@click.option(
    "--requests-per-hour",
    type=click.IntRange(min=1),
    default=DEFAULT_REQUESTS_PER_HOUR,
    show_default=True,
    help="The share of the key's rate limit at the legacy service that the import may use.",
)
@options.json_option
@options.config_option
def import_legacy_data(
    *,
    name: str,
    api_key_file: IO[str] | None,
    as_json: bool,
    settings: Settings,
    **import_options: Any,
) -> None:
    """Import data from the legacy service that the current service does not have.

    Imports the recipient statuses `inactive` and `disabled`, autoswitch and holdup; batches with
    the requested amount and the memo of each payment; and the ids that clients use. Neither service
    is changed. The import can be repeated: it reports what is new, changed or equal, and keeps
    objects that clients have changed through the gateway since the last import.

    Exit code 0: every object was imported. 1: some objects could not be mapped. 2: the import
    failed.
    """
    api_key, chosen = _read_api_key(api_key_file), ImportOptions(**import_options)
    with output.show_progress("Reading the legacy service") as report_progress:

        async def run_import(store: Store) -> ImportReport:
            key = await _find_and_verify_key(store, name, api_key)
            try:
                async with open_cutover(settings, store, key, api_key, chosen) as import_run:
                    return await import_run.run_import(report_progress)
            except LegacyReadFailed as error:
                raise CommandError(f"the legacy service: {error}") from None
            except Failure as failure:
                raise CommandError(
                    f"the current service's batches cannot be read ({failure}): `payout-gateway "
                    "doctor` says why; then run this again"
                ) from None

        report = output.run_with_store(settings, run_import)
    if as_json:
        options.print_json(_build_import_report_json(report, name, chosen))
    else:
        _print_report(report, chosen)
    click.get_current_context().exit(1 if report.unmapped else 0)


def _read_api_key(file: IO[str] | None) -> str:
    # Not an argument: it would be visible in process lists.
    api_key = (file.read() if file else os.environ.get(API_KEY_VARIABLE, "")).strip()
    if not api_key:
        raise CommandError(
            f"no API key was given; set ${API_KEY_VARIABLE} or pass --api-key-file FILE"
        )
    return api_key


async def _find_and_verify_key(store: Store, name: str, api_key: str) -> ApiKey:
    """Returns the named key. Checks that the API key belongs to it: otherwise another merchant's
    data would be imported under this one.
    """
    named_key = find_single_key(await load_listed_keys(store), name)
    async with ApiKeyStore(store) as keyring:
        key = await keyring.find_active_key(api_key)
    if key is None or key.id != named_key.id:
        raise CommandError(
            "the given API key is not the key of this name; check --key and the API key"
        )
    return key


# Output


def _count_results(report: ImportReport) -> dict[str, dict[str, int]]:
    return {
        kind: {word: counts[word] for word in RESULTS} for kind, counts in report.counts.items()
    }


def _build_import_report_json(
    report: ImportReport, name: str, options: ImportOptions
) -> dict[str, Any]:
    return {
        "key": name,
        "dry_run": options.is_dry_run,
        **_count_results(report),
        "unmapped": [each._asdict() for each in report.unmapped],
        "batches_moved": report.moved_batches,
        "batches_at_legacy": report.remaining,
        "requests": report.requests,
    }


def _print_report(report: ImportReport, options: ImportOptions) -> None:
    rows = [[kind, *counts.values()] for kind, counts in _count_results(report).items()]
    output.print_table(["", "new", "changed", "equal", "kept (changed here)"], rows)
    click.echo("")
    for kind, id_, why in report.unmapped:
        click.echo(f"Not mapped: {kind} {id_}: {why}")
    if report.moved_batches:
        moved = pluralize(report.moved_batches, "batch", "batches")
        click.echo(f"Created at the legacy service, translated from now on: {moved}.")
    if report.remaining:
        remaining = pluralize(report.remaining, "batch", "batches")
        click.echo(f"Created at the legacy service, still served by it: {remaining}.")
    click.echo(f"{pluralize(report.requests, 'request')} to the legacy service.")
    if options.is_dry_run:
        click.echo("Dry run: nothing was changed.")
