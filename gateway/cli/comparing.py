"""The `payout-gateway compare` group, and `compare report`: the results of shadow traffic."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gateway.cli import CommandError
from gateway.cli import compare as compare_module
from gateway.cli.options import (
    FILE,
    FullHelpGroup,
    config_option,
    format_time,
    json_option,
    print_json,
    require_confirmation,
    yes_option,
)
from gateway.cli.output import print_table, run_with_store
from gateway.compare.requests import InputError
from gateway.compare.rules import Rule
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.readiness import VALUE_FREE_RULE_KINDS, KeyReadiness, load_cutover_readiness
from gateway.storage import Store
from gateway.storage.difference_rows import (
    delete_comparison_tallies_of_key,
    load_comparison_tallies_by_key,
)

UNKNOWN_OBJECT_HINT = (
    "If the status differs, one service may not have the requested object: `cutover import` "
    "imports the objects that only the legacy service has."
)


class _CompareGroup(FullHelpGroup):
    """Runs the comparison if the first argument is not a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["report"] else ["run", *args])


class _GroupContext(click.Context):
    """Leaves `run` out of the command path in messages, because users do not type it."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else ""


@click.group(cls=_CompareGroup)
def compare() -> None:
    """Send the same requests to two services and report differences."""


# The group stands in for its default subcommand: users type `compare`, not `compare run`.
compare_module.compare.context_class = _GroupContext
compare.add_command(compare_module.compare, "run")


@compare.command("report")
@click.option("--key", "name", metavar="NAME", help="Only this key, by its name.")
@click.option(
    "--rules",
    "rules_files",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Differences to ignore, with the reason for each (TOML). Only `ignore` and "
    "`present` rules apply, because only masked values are stored.",
)
@click.option("--forget", is_flag=True, help="Reset the statistics of --key.")
@yes_option
@json_option
@config_option
def show_shadow_comparison_report(
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
        require_confirmation(f"Reset the comparison statistics of key {name}?", yes=yes)
    rules = _load_rules(rules_files)
    readiness = _load_or_reset_key_readiness(settings, name, rules, forget=forget)
    if name and not readiness and not forget:
        raise CommandError(_NOTHING_COMPARED)
    if as_json:
        print_json(
            {"keys": [_build_key_readiness_json(key_readiness) for key_readiness in readiness]}
        )
    elif forget:
        click.echo(
            f"Reset the comparison statistics of key {name}; new requests are counted from zero."
        )
    else:
        for key_readiness in readiness:
            _print_key_readiness(key_readiness)
        if not readiness:
            click.echo("Nothing was compared yet. To compare, run `modes set --key NAME compare`.")
    click.get_current_context().exit(
        0 if all(key_readiness.is_ready for key_readiness in readiness) else 1
    )


_NOTHING_COMPARED = (
    "nothing was compared for a key of this name; `modes list` shows the keys in mode compare"
)


def _load_rules(files: tuple[Path, ...]) -> list[Rule]:

    try:
        rules = compare_module.load_rules(files).rules
    except InputError as unusable:
        raise CommandError(str(unusable)) from None
    # Of the files only: the built-in rules were applied when the answers were compared.
    return [
        rule for rule in rules if rule.origin != "built in" and rule.kind in VALUE_FREE_RULE_KINDS
    ]


def _load_or_reset_key_readiness(
    settings: Settings, name: str | None, rules: list[Rule], *, forget: bool
) -> list[KeyReadiness]:

    async def load_or_reset(store: Store) -> list[KeyReadiness]:
        if not forget:
            return await load_cutover_readiness(store, name, rules)
        tallies = await load_comparison_tallies_by_key(store)
        # A key of the same name may exist in both environments.
        tenants = {tally_key.tenant for tally_key in tallies if tally_key.key == name}
        if not tenants:
            raise CommandError(_NOTHING_COMPARED)
        for tenant in tenants:
            await delete_comparison_tallies_of_key(store, tenant, str(name))
        return []

    return run_with_store(settings, load_or_reset)


# Output


_COUNTS = ("compared", "different", "failed", "dropped")


def _build_key_readiness_json(readiness: KeyReadiness) -> dict[str, Any]:
    return {
        **readiness.owner._asdict(),
        "key": readiness.key,
        "ready": readiness.is_ready,
        "compared": readiness.answer_count,
        "unexplained": readiness.open_difference_count,
        # The names of some JSON keys are older than those in the code; scripts read them.
        "never_seen": readiness.never_seen,
        "used_and_never_compared": readiness.missing_reads,
        "mostly_not_comparable": readiness.mostly_incomparable_reads,
        "last_at": format_time(readiness.last_at),
        "operations": [
            {"operation": name, **{count: getattr(tally, count) for count in _COUNTS}}
            for name, tally in readiness.operations.items()
        ],
        "differences": [
            {
                "operation": difference.operation,
                "kind": difference.kind,
                "place": difference.place,
                "answers": difference.answers,
                "explained": difference.why,
                "example": asdict(difference.example),
            }
            for difference in readiness.differences
        ],
    }


def _print_key_readiness(readiness: KeyReadiness) -> None:
    click.echo(f"{readiness.owner}, key {readiness.key}: {readiness.sentence}\n")
    rows = [
        [name, *(str(getattr(tally, count)) for count in _COUNTS)]
        for name, tally in readiness.operations.items()
    ]
    print_table(["operation", "compared", "different", "not comparable", "dropped"], rows)
    click.echo("")
    for difference in readiness.differences:
        reason = f"; ignored: {difference.why}" if difference.why else ""
        place = f"{difference.operation}: {difference.kind} at {difference.place}"
        click.echo(f"{place}, in {pluralize(difference.answers, 'answer')}{reason}")
        if (example := difference.example).request_id:
            values = f"legacy {example.control}, current {example.candidate}"
            click.echo(f"    for example request {example.request_id}: {values}")
    if readiness.has_unexplained_status_difference:
        click.echo(UNKNOWN_OBJECT_HINT)
    if readiness.never_seen:
        click.echo(f"Never compared: {', '.join(readiness.never_seen)}")
    for obstacle in readiness.obstacles:
        click.echo(obstacle)
    click.echo("")
