"""`payout-gateway ids`: imports the ids that legacy clients use for existing objects."""

import csv
from collections.abc import Iterator
from typing import BinaryIO

import click

from gateway.auth.key_lines import ImportRefused
from gateway.auth.key_rows import load_listed_keys
from gateway.cli import CommandError, options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.storage import Store, Tenant
from gateway.storage.id_rows import IdCollisionError, save_legacy_ids
from mappings.ids import ID_PREFIXES, LEGACY_ID_PATTERN


@click.group(cls=options.FullHelpGroup)
def ids() -> None:
    """Import the ids that legacy clients use for existing objects."""


@ids.command("import")
@click.argument("file", type=click.File("rb"))
@options.merchant_option
@options.environment_option
@options.config_option
def import_ids(
    *, file: BinaryIO, merchant: str | None, environment: str | None, settings: Settings
) -> None:
    """Import pairs of ids from FILE, a CSV of legacy_id,current_id (- is stdin).

    For objects that clients stored under a different id than the service uses now. Within a minute,
    answers show the legacy id; requests may use either. A batch that was created through the
    gateway keeps the alias that clients know. Either all pairs are imported or none. The options
    say whose objects they are, unless only one merchant and environment has keys.
    """
    filters = " ".join(word for word in (merchant, environment) if word) or "any merchant"
    missing = f"there is no key of {filters}; `payout-gateway keys list` shows the keys"

    async def save_ids(store: Store) -> Tenant:
        tenants = {key.tenant for key in await load_listed_keys(store)}
        tenant = options.select_tenant(tenants, merchant, environment, missing)
        current_ids = {legacy_id: current_id for legacy_id, (_, current_id) in pairs.items()}
        await save_legacy_ids(store, tenant, current_ids, imported=True)
        return tenant

    try:
        pairs = parse_id_pairs(file.read())
        try:
            tenant = output.run_with_store(settings, save_ids, "Importing")
        except IdCollisionError as collision:
            line, _ = pairs[collision.legacy_id]
            raise ImportRefused(line, "", str(collision)) from None
        click.echo(f"Imported {pluralize(len(pairs), 'pair')} of ids: {tenant}")
    except ImportRefused as error:
        name = getattr(file, "name", "<stdin>")
        raise CommandError(f"{name}: {error}; nothing was imported") from None


HEADER = ["legacy_id", "current_id"]


def parse_id_pairs(data: bytes) -> dict[str, tuple[int, str]]:
    """Parses the file; returns line and current id by legacy id. Raises ImportRefused."""
    try:
        # Spreadsheets begin a CSV file with a byte order mark.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportRefused(data[: error.start].count(b"\n") + 1, "", "is not UTF-8") from None
    pairs: dict[str, tuple[int, str]] = {}
    lines_by_current: dict[str, int] = {}
    for line, legacy_id, current_id in _iterate_pairs(text):
        _check_pair(line, legacy_id, current_id)
        earlier, earlier_current_id = pairs.get(legacy_id, (line, current_id))
        if earlier_current_id != current_id:
            raise ImportRefused(line, "", f"{legacy_id} stands for another id in line {earlier}")
        other_line = lines_by_current.setdefault(current_id, line)
        if other_line != line and legacy_id not in pairs:
            raise ImportRefused(
                line, "", f"{current_id} has another legacy id in line {other_line}"
            )
        pairs.setdefault(legacy_id, (line, current_id))
    if not pairs:
        raise ImportRefused(1, "", "the file contains no pair")
    return pairs


def _iterate_pairs(text: str) -> Iterator[tuple[int, str, str]]:
    rows = csv.reader(text.splitlines(), strict=True)
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or (rows.line_num == 1 and cells == HEADER):
                continue
            if len(cells) != len(HEADER):
                raise ImportRefused(rows.line_num, "", "must be legacy_id,current_id")
            yield rows.line_num, cells[0], cells[1]
    except csv.Error as error:
        raise ImportRefused(rows.line_num, "", f"is not CSV ({error})") from None


def _check_pair(line: int, legacy_id: str, current_id: str) -> None:
    for name, id_ in zip(HEADER, (legacy_id, current_id), strict=True):
        if not LEGACY_ID_PATTERN.fullmatch(id_) or id_.partition("-")[0] not in ID_PREFIXES:
            raise ImportRefused(
                line, "", f"{name} is not an id, such as R-, B- or P- and 16 characters"
            )
    if legacy_id.partition("-")[0] != current_id.partition("-")[0]:
        raise ImportRefused(line, "", f"{legacy_id} and {current_id} are ids of different objects")
