"""`payout-gateway cutover`: imports data that only the legacy service has, before it ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from gateway.cli.command_group import Commands, document, json_option
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.cli.progress import show_progress as progress
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize

if TYPE_CHECKING:
    from gateway.auth.keys import ApiKey
    from gateway.operator.cutover import Options, Progress, Report
    from gateway.storage import Store

VARIABLE = "LEGACY_API_KEY"
SHARE = 5000
"""Requests per hour: half of the legacy service's rate limit for a key."""


@dataclass(frozen=True, slots=True)
class Share:
    """The request budget of an import, and the callback that shows its progress."""

    per_hour: int
    progress: Progress


@click.group(cls=Commands)
def cutover() -> None:
    """Prepare a cutover before the legacy service ends."""


@cutover.command("import")
@click.option(
    "--key", "name", required=True, metavar="NAME", help="The merchant's key, by its name."
)
@click.option(
    "--api-key-file",
    type=click.File("r"),
    help=f"A file that contains the API key, or - for standard input. Default: ${VARIABLE}.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; only report what would change.")
@click.option(
    "--open-batches-only", "open_batches", is_flag=True, help="Skip batches that have ended."
)
@click.option(
    "--move-open-batches",
    "moves_open",
    is_flag=True,
    help="Also move open batches that were created at the legacy service: translate their "
    "requests.",
)
@click.option(
    "--requests-per-hour",
    type=click.IntRange(min=1),
    default=SHARE,
    show_default=True,
    help="The share of the key's rate limit at the legacy service that the import may use.",
)
@json_option
@config_option
def import_(
    *,
    name: str,
    api_key_file: IO[str] | None,
    dry_run: bool,
    open_batches: bool,
    moves_open: bool,
    requests_per_hour: int,
    as_json: bool,
    settings: Settings,
) -> None:
    """Import data from the legacy service that the current service does not have.

    Imports the recipient statuses `inactive` and `disabled`, autoswitch and holdup; batches with
    the requested amount and the memo of each payment; and the ids that clients use. Neither service
    is changed. The import can be repeated: it reports what is new, changed or equal, and keeps
    objects that clients have changed through the gateway since the last import.

    Exit code 0: every object was imported. 1: some objects could not be mapped. 2: the import
    failed.
    """
    from gateway.operator.cutover import Options

    options = Options(dry_run, open_batches, moves_open)
    api_key = _api_key(api_key_file)
    with progress("Reading the legacy service") as how_far:
        share = Share(requests_per_hour, how_far)
        report = run_to_completion(_imported(settings, name, api_key, options, share))
    if as_json:
        document(_as_json(report, name, options))
    else:
        _tell(report, options)
    click.get_current_context().exit(1 if report.unmapped else 0)


def _api_key(file: IO[str] | None) -> str:
    # Not an argument: it would be visible in process lists.
    api_key = (file.read() if file else os.environ.get(VARIABLE, "")).strip()
    if not api_key:
        raise Mistake(f"no API key was given; set ${VARIABLE} or pass --api-key-file FILE")
    return api_key


async def _imported(
    settings: Settings, name: str, api_key: str, options: Options, share: Share
) -> Report:
    from gateway.operator.cutover import open_cutover
    from gateway.operator.legacy_reads import NotRead
    from gateway.storage import open_store

    def told(seconds: float) -> None:
        click.echo(
            f"Waiting {seconds:.0f} s: the requests allowed per hour are used up "
            "(--requests-per-hour).",
            err=True,
        )

    async with open_store(settings.state, create=False) as store:
        key = await _key(store, name, api_key)
        environment = settings.environments.configured().get(key.environment)
        # Checked here: it depends on the environment of the key.
        if environment is None or not environment.legacy_base_url:
            raise Mistake(
                f"environments.{key.environment}.legacy_base_url is not set, so there is no legacy "
                "service to import from"
            )
        async with open_cutover(
            settings, store, key, api_key, per_hour=share.per_hour, options=options, told=told
        ) as opened:
            try:
                return await opened.run(share.progress)
            except NotRead as unread:
                raise Mistake(f"the legacy service: {unread}") from None


async def _key(store: Store, name: str, api_key: str) -> ApiKey:
    """The named key. Checks that the API key belongs to it: otherwise another merchant's data would
    be imported under this one.
    """
    from gateway.auth.key_rows import find_matching_keys, load_listed_keys
    from gateway.operator.cutover import find_cutover_key

    found = find_matching_keys(await load_listed_keys(store), name)
    if len(found) != 1:
        what = "several keys have this prefix" if found else "no key has this name or prefix"
        raise Mistake(f"--key {name}: {what}; `keys list` shows the names")
    key = await find_cutover_key(store, api_key)
    if key is None or key.id != found[0].id:
        raise Mistake("the given API key is not the key of this name; check --key and the API key")
    return key


# Output

WORDS = ("new", "changed", "equal", "kept")


def _as_json(report: Report, name: str, options: Options) -> dict[str, Any]:
    return {
        "key": name,
        "dry_run": options.dry_run,
        **{kind: {word: counts[word] for word in WORDS} for kind, counts in report.counts.items()},
        "unmapped": [{"kind": one.kind, "id": one.id, "why": one.why} for one in report.unmapped],
        "batches_moved": report.moved,
        "batches_at_legacy": report.stay,
        "requests": report.requests,
    }


def _tell(report: Report, options: Options) -> None:
    rows = [
        [kind, *(str(counts[word]) for word in WORDS)] for kind, counts in report.counts.items()
    ]
    print_table(["", "new", "changed", "equal", "kept (changed here)"], rows)
    click.echo("")
    for one in report.unmapped:
        click.echo(f"Not mapped: {one.kind} {one.id}: {one.why}")
    if report.moved:
        moved = pluralize(report.moved, "batch", "batches")
        click.echo(f"Created at the legacy service, translated from now on: {moved}.")
    if report.stay:
        stay = pluralize(report.stay, "batch", "batches")
        click.echo(f"Created at the legacy service, still served by it: {stay}.")
    click.echo(f"{pluralize(report.requests, 'request')} to the legacy service.")
    if options.dry_run:
        click.echo("Dry run: nothing was changed.")
