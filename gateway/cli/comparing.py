"""The `payout-gateway compare` group, and `compare report`: the results of shadow traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli import compare as asked
from gateway.cli.command_group import (
    Commands,
    ask_confirmation,
    document,
    json_option,
    moment,
    yes_option,
)
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize

if TYPE_CHECKING:
    from gateway.compare.rules import Rule
    from gateway.operator.readiness import Standing


UNKNOWN = (
    "If the status differs, one service may not have the requested object: `cutover "
    "import` imports "
    "the objects that only the legacy service has."
)


class _Compare(Commands):
    """Runs the comparison if the first argument is not a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["report"] else ["run", *args])


class _Itself(click.Context):
    """Leaves `run` out of the command path in messages, because users do not type it."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else ""


@click.group(cls=_Compare)
def compare() -> None:
    """Send the same requests to two services and report differences."""


asked.compare.context_class = _Itself
compare.add_command(asked.compare, "run")


@compare.command("report")
@click.option("--key", "name", metavar="NAME", help="Only this key, by its name.")
@click.option(
    "--rules",
    "rules_files",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Differences to ignore, with the reason for each (TOML). Only `ignore` and "
    "`present` rules "
    "apply, because values are not stored.",
)
@click.option("--forget", is_flag=True, help="Reset the statistics of --key.")
@yes_option
@json_option
@config_option
def report(
    *,
    name: str | None,
    rules_files: tuple[Path, ...],
    forget: bool,
    yes: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show the differences that a running gateway found for keys in mode `compare`.

    For each key: how many answers were compared, where they differ, whether a rule explains the
    difference, and which reads were not compared. Exit code 0: every compared key is ready for
    cutover. 1: a key is not ready. 2: the report could not be made.
    """
    if forget:
        if name is None:
            raise click.UsageError("--forget requires --key NAME")
        ask_confirmation(f"Reset the comparison statistics of key {name}?", yes=yes)
    standings = run_to_completion(_read(settings, name, _rules(rules_files), forget=forget))
    if name and not standings and not forget:
        raise Mistake(_NOTHING)
    if as_json:
        document({"keys": [_as_json(one) for one in standings]})
    elif forget:
        click.echo(
            f"Reset the comparison statistics of key {name}; new requests are counted from zero."
        )
    else:
        _tell(standings)
    click.get_current_context().exit(0 if all(one.is_ready for one in standings) else 1)


_NOTHING = (
    "nothing was compared for a key of this name; `modes list` shows the keys in mode compare"
)


def _rules(files: tuple[Path, ...]) -> list[Rule]:
    from gateway.compare.errors import Unusable
    from gateway.compare.inputs import read_input_text
    from gateway.compare.rules import parse_rules
    from gateway.operator.readiness import OVERLOOKING

    try:
        read = [parse_rules(read_input_text(path), str(path)) for path in files]
    except Unusable as unusable:
        raise Mistake(str(unusable)) from None
    # Rules of other kinds need values, which are not stored.
    return [rule for one in read for rule in one.rules if rule.kind in OVERLOOKING]


async def _read(
    settings: Settings, name: str | None, rules: list[Rule], *, forget: bool
) -> list[Standing]:
    from gateway.operator.readiness import load_readiness as standings
    from gateway.storage import open_store
    from gateway.storage.difference_rows import all_tallies, forget_tallies

    async with open_store(settings.state, create=False) as store:
        if forget:
            owners = {one.owner for one in await all_tallies(store) if one.key == name}
            if not owners:
                raise Mistake(_NOTHING)
            for owner in owners:
                await forget_tallies(store, owner, str(name))
            return []
        return await standings(store, name, rules)


# Output


def _as_json(one: Standing) -> dict[str, Any]:
    return {
        **one.owner._asdict(),
        "key": one.key,
        "ready": one.is_ready,
        "compared": one.compared,
        "unexplained": one.unexplained,
        "never_seen": one.never_seen,
        "used_and_never_compared": one.uncompared,
        "last_at": moment(one.last_at),
        "operations": [
            {
                "operation": name,
                "compared": tally.compared,
                "different": tally.different,
                "failed": tally.failed,
                "dropped": tally.dropped,
            }
            for name, tally in one.operations.items()
        ],
        "differences": [
            {
                "operation": each.operation,
                "kind": each.kind,
                "place": each.place,
                "answers": each.answers,
                "explained": each.why,
            }
            for each in one.differences
        ],
    }


def _tell(standings: list[Standing]) -> None:
    if not standings:
        click.echo("Nothing was compared yet. To compare, run `modes set --key NAME compare`.")
    for one in standings:
        click.echo(f"{one.owner}, key {one.key}: {one.sentence}\n")
        rows = [
            [name, str(each.compared), str(each.different), str(each.failed), str(each.dropped)]
            for name, each in one.operations.items()
        ]
        print_table(["operation", "compared", "different", "no answer", "dropped"], rows)
        click.echo("")
        for each in one.differences:
            why = f"; ignored: {each.why}" if each.why else ""
            where = f"{each.operation}: {each.kind} at {each.place}"
            click.echo(f"{where}, in {pluralize(each.answers, 'answer')}{why}")
        if one.may_be_unknown:
            click.echo(UNKNOWN)
        if one.never_seen:
            click.echo(f"Never compared: {', '.join(one.never_seen)}")
        if one.uncompared:
            click.echo(f"Never compared, but used by the key: {', '.join(one.uncompared)}")
        click.echo("")
