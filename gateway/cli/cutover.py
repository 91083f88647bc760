"""`payout-gateway cutover`: what only the legacy service knows, brought over before it ends."""

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
"""Half of what the legacy service lets through in an hour."""


@dataclass(frozen=True, slots=True)
class Share:
    """How much may be asked in an hour, and who is told how far it is."""

    per_hour: int
    progress: Progress


@click.group(cls=Commands)
def cutover() -> None:
    """Steps of a cutover, before the legacy service ends."""


@cutover.command("import")
@click.option("--key", "name", required=True, metavar="NAME", help="Whose: a key, by its name.")
@click.option(
    "--api-key-file",
    type=click.File("r"),
    help=f"A file with the API key itself, - for standard input; default: ${VARIABLE}.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be.")
@click.option("--open-batches-only", "open_batches", is_flag=True, help="Leave out ended batches.")
@click.option(
    "--move-open-batches",
    "moves_open",
    is_flag=True,
    help="Translate open batches too that were begun at the legacy service, where they were found.",
)
@click.option(
    "--requests-per-hour",
    type=click.IntRange(min=1),
    default=SHARE,
    show_default=True,
    help="How much of the key's limit at the legacy service may be used for this.",
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
    """Read at the legacy service what the current one cannot tell, and remember it.

    Of recipients the words `inactive` and `disabled`, autoswitch and holdup; batches with what each
    payment was asked for and its memo; the ids that clients know. Run it as often as you want: it
    says what is new, changed or equal, and leaves alone what clients changed here since. Nothing is
    changed at either service.

    Exit 0: all of it was mapped. Exit 1: some of it was not. Exit 2: it could not be done.
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
    api_key = (file.read() if file else os.environ.get(VARIABLE, "")).strip()
    if not api_key:
        raise Mistake(f"there is no API key: set ${VARIABLE}, or say --api-key-file FILE")
    return api_key


async def _imported(
    settings: Settings, name: str, api_key: str, options: Options, share: Share
) -> Report:
    from gateway.operator.cutover import open_cutover
    from gateway.operator.legacy_reads import NotRead
    from gateway.storage import open_store

    def told(seconds: float) -> None:
        click.echo(f"Waiting {seconds:.0f} s: this hour's requests are used up.", err=True)

    async with open_store(settings.state, create=False) as store:
        key = await _key(store, name, api_key)
        environment = settings.environments.configured().get(key.environment)
        if environment is None or not environment.legacy_base_url:
            raise Mistake(f"environments.{key.environment}.legacy_base_url is not set")
        async with open_cutover(
            settings, store, key, api_key, per_hour=share.per_hour, options=options, told=told
        ) as opened:
            try:
                return await opened.run(share.progress)
            except NotRead as unread:
                raise Mistake(f"the legacy service: {unread}") from None


async def _key(store: Store, name: str, api_key: str) -> ApiKey:
    """The key that is meant; what is read with another's would be remembered as this one's."""
    from gateway.auth.key_rows import find_matching_keys, load_listed_keys
    from gateway.operator.cutover import find_cutover_key

    found = find_matching_keys(await load_listed_keys(store), name)
    if len(found) != 1:
        what = "several keys begin" if found else "no key has this name, or begins"
        raise Mistake(f"--key {name}: {what} so; `keys list` shows their names")
    key = await find_cutover_key(store, api_key)
    if key is None or key.id != found[0].id:
        raise Mistake("the API key that was given is not the one of this name")
    return key


# What it says

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
    print_table(["", "new", "changed", "equal", "kept as it is here"], rows)
    click.echo("")
    for one in report.unmapped:
        click.echo(f"Not mapped: {one.kind} {one.id}: {one.why}")
    if report.moved:
        moved = pluralize(report.moved, "batch", "batches")
        click.echo(f"Begun at the legacy service, and translated from now on: {moved}.")
    if report.stay:
        stay = pluralize(report.stay, "batch", "batches")
        click.echo(f"Begun at the legacy service, and not moved: {stay}.")
    click.echo(f"{pluralize(report.requests, 'request')} to the legacy service.")
    if options.dry_run:
        click.echo("A dry run: nothing was changed.")
