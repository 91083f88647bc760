"""`payout-gateway brownout`: planned interruptions of legacy operations."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import Commands, ask_confirmation_if_interactive, yes_option
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize

if TYPE_CHECKING:
    from gateway.storage.brownout_rows import Brownout, Hit
    from gateway.storage.usage_rows import Used


class Moment(click.ParamType[datetime]):
    name = "moment"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail("not a date and time; write it like 2026-11-30T09:00Z", param, ctx)
        if moment.tzinfo is None:
            self.fail("add the time zone, for example 2026-11-30T09:00Z for UTC", param, ctx)
        return moment.astimezone(UTC)


@click.group(cls=Commands)
def brownout() -> None:
    """Schedule planned interruptions before the legacy interface ends."""


@brownout.command("schedule")
@click.option(
    "--from",
    "begins_at",
    type=Moment(),
    help="Start time, such as 2026-11-30T09:00Z. Default: now.",
)
@click.option(
    "--until", "ends_at", type=Moment(), required=True, help="End time, such as 2026-11-30T09:30Z."
)
@click.option(
    "--merchant", "merchants", metavar="NAME", multiple=True, help="Only requests of this merchant."
)
@click.option(
    "--key", "keys", metavar="NAME", multiple=True, help="Only this key, by name or prefix."
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="NAME",
    help="Only this operation, as named by `operations`, or a group: recipients, payout_methods, "
    "batches (without their payments), payments, balances or geography.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Refuse no request; only count the requests that would be refused.",
)
@yes_option
@config_option
def schedule(
    *,
    begins_at: datetime | None,
    ends_at: datetime,
    merchants: tuple[str, ...],
    keys: tuple[str, ...],
    operations: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    settings: Settings,
) -> None:
    """Schedule a brownout, and list who used the affected operations in the last seven days.

    --merchant, --key and --operation can be repeated; each merchant and key gets its own brownout.
    On a terminal, the command asks for confirmation unless --dry-run is given.
    """
    from gateway.auth.key_rows import load_listed_keys
    from gateway.operator.cutover_windows import (
        NoWindow,
        create_window,
        expand_operation_names,
        load_window_users,
        resolve_window_key,
    )
    from gateway.storage import open_store
    from gateway.storage.brownout_rows import add_brownout

    async def done() -> tuple[list[Brownout], list[Used]]:
        async with open_store(settings.state, create=False) as store:
            known = await load_listed_keys(store)
            scheduled = [resolve_window_key(one, known) for one in those]
            for one in scheduled:
                await add_brownout(store, one)
            return scheduled, await load_window_users(store, *scheduled)

    now = datetime.now(UTC)
    begins_at = begins_at or now
    try:
        chosen = expand_operation_names(operations)
        those = [
            create_window(now, (begins_at, ends_at), merchant, key, chosen, refuses=not dry_run)
            for merchant in merchants or ("",)
            for key in keys or ("",)
        ]
        if not dry_run:
            ask_confirmation_if_interactive(_question(those), yes=yes)
        scheduled, hit = run_to_completion(done())
    except NoWindow as why:
        raise Mistake(f"--{why}") from None
    what = "counts requests" if dry_run else "refuses requests"
    for one in scheduled:
        click.echo(
            f"Brownout {one.id} {what}{_of(one)} from {_text(begins_at)} to {_text(ends_at)}."
        )
    if not hit:
        click.echo("No affected request was made in the last seven days.")
        return
    click.echo("Affected requests in the last seven days:\n")
    heads = ["merchant", "environment", "key", "operation", "requests", "last"]
    print_table(heads, [[*_whose(each), str(each.requests), _text(each.last_at)] for each in hit])


def _question(those: list[Brownout]) -> str:
    whose = ",".join(map(_of, those)) if _of(those[0]) else " of every key"
    return f"Refuse requests{whose} from {_text(those[0].begins_at)} to {_text(those[0].ends_at)}?"


def _of(one: Brownout) -> str:
    return "".join(f" of {name}" for name in (one.merchant, one.key) if name)


def _whose(used: Used) -> list[str]:
    return [used.merchant, used.environment, used.key, used.operation]


@brownout.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def listed(*, as_json: bool, settings: Settings) -> None:
    """List brownouts and the requests they refused or counted."""
    from gateway.operator.cutover_windows import describe_window_scope, describe_window_state
    from gateway.storage import open_store
    from gateway.storage.brownout_rows import all_brownouts, hits_of

    async def read() -> tuple[list[Brownout], dict[str, dict[Hit, int]]]:
        async with open_store(settings.state, create=False) as store:
            return await all_brownouts(store), await hits_of(store)

    those, hits = run_to_completion(read())
    now = datetime.now(UTC)
    if as_json:
        told = [
            _as_json(one, hits.get(one.id, {}), describe_window_state(one, now)) for one in those
        ]
        click.echo(json.dumps({"brownouts": told}, indent=2))
        return
    if not those:
        click.echo("There are no brownouts.")
    for one in those:
        what = "refuses" if one.refuses else "only counts"
        span = f"{_text(one.begins_at)} to {_text(one.ends_at)}"
        click.echo(f"{one.id}  {span}  {what}: {describe_window_scope(one)}")
        click.echo(f"    {describe_window_state(one, now)}")
        for hit, count in hits.get(one.id, {}).items():
            click.echo(f"    {hit.owner} {hit.key}  {hit.operation}: {pluralize(count, 'request')}")


def _as_json(one: Brownout, hits: dict[Hit, int], state: str) -> dict[str, Any]:
    return {
        "id": one.id,
        "from": _text(one.begins_at),
        "until": _text(one.ends_at),
        "merchant": one.merchant or None,
        "key": one.key or None,
        "operations": list(one.operations),
        "refuses": one.refuses,
        "state": state,
        "hits": [
            {**hit.owner._asdict(), "key": hit.key, "operation": hit.operation, "requests": count}
            for hit, count in hits.items()
        ],
    }


@brownout.command("off")
@click.argument("brownout_id", required=False)
@config_option
def off(*, brownout_id: str | None, settings: Settings) -> None:
    """Switch off one brownout, or all that have not ended. Takes effect within a second."""
    from gateway.storage import open_store
    from gateway.storage.brownout_rows import end_brownouts

    async def done() -> int:
        async with open_store(settings.state, create=False) as store:
            return await end_brownouts(store, store.clock(), brownout_id)

    count = run_to_completion(done())
    if brownout_id and not count:
        raise Mistake(
            f"{brownout_id}: no scheduled or active brownout has this id; see `brownout list`"
        )
    click.echo(f"{count} switched off." if count else "No brownout is scheduled or active.")


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
