"""`payout-gateway modes`: chooses at run time which service answers a key's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import (
    Commands,
    ask_confirmation,
    document,
    environment_option,
    json_option,
    moment,
    yes_option,
)
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from gateway.storage.mode_rows import GROUPS, MODES, TRANSLATE, Group, Mode

if TYPE_CHECKING:
    from gateway.operator.mode_switches import Standing


@click.group(cls=Commands)
def modes() -> None:
    """Choose which service answers a key's requests: the current or the legacy one."""


@modes.command("set")
@click.option("--key", metavar="NAME", help="One key, by name or prefix.")
@click.option("--merchant", metavar="NAME", help="Every key of a merchant, including future keys.")
@environment_option
@click.option(
    "--group",
    "groups",
    type=click.Choice(GROUPS),
    multiple=True,
    help="Only this group of operations. Default: all.",
)
@yes_option
@click.argument("mode", type=click.Choice(MODES))
@config_option
def set_(
    *,
    key: str | None,
    merchant: str | None,
    environment: str | None,
    groups: tuple[Group, ...],
    yes: bool,
    mode: Mode,
    settings: Settings,
) -> None:
    """Switch a key or a merchant to `translate`, `forward` or `compare`.

    Running gateways follow within a second. Requests in flight are not affected.

    The group `batches` includes payments, quotes, summaries and starts. A batch stays with the
    service that created it, whatever the mode.
    """
    from gateway.operator.mode_switches import (
        NotSwitched,
        Whose,
        check_legacy_address,
        count_legacy_batches,
        describe_mode,
        find_switch_owners,
        switch_mode,
    )
    from gateway.storage import open_store

    if (key is None) == (merchant is None):
        raise click.UsageError("give either --key NAME or --merchant NAME")
    chosen = groups or GROUPS

    async def asked() -> tuple[list[Whose], int]:
        async with open_store(settings.state, create=False) as store:
            those = await find_switch_owners(store, key, merchant, environment)
            if mode != TRANSLATE:
                check_legacy_address(settings, those)
            return those, await count_legacy_batches(store, those)

    async def done() -> list[str]:
        async with open_store(settings.state, create=False) as store:
            return await switch_mode(store, those, chosen, mode)

    try:
        those, begun = run_to_completion(asked())
    except NotSwitched as why:
        raise Mistake(str(why)) from None
    # On stderr with the prompt: stdout has only the result.
    for one in those:
        click.echo(f"{one.told}: {', '.join(chosen)}", err=True)
    means = describe_mode(mode, settings)
    click.echo(f"Mode {mode}: {means}", err=True)
    if mode == TRANSLATE and begun and "batches" in chosen:
        click.echo(f"Batches that stay at the legacy service: {begun}.", err=True)
    ask_confirmation(f"Switch to {mode}?", yes=yes)
    displaced = run_to_completion(done())
    click.echo(f"Switched to {mode}; running gateways follow within a second.")
    if displaced:
        click.echo(f"This replaces the mode of these keys: {', '.join(displaced)}.")


# Listing


@modes.command("list")
@json_option
@config_option
def listed(*, as_json: bool, settings: Settings) -> None:
    """List the switched keys and the audit log of switches. All other keys are translated.

    Also shows how many batches of each merchant stay at the legacy service, which created them.
    """

    async def read() -> Standing:
        from gateway.operator.mode_switches import load_switch_status as standing
        from gateway.storage import open_store

        async with open_store(settings.state, create=False) as store:
            return await standing(store)

    found = run_to_completion(read())
    if as_json:
        document(_as_json(found))
        return
    if not found.switches:
        click.echo("No key is switched: every request is translated.")
        return
    rows = [
        [*one.owner, one.key or "every key", one.group, one.mode, moment(one.since)]
        for one in found.switches
    ]
    print_table(["merchant", "environment", "key", "group", "mode", "since"], rows)
    for owner, number in found.begun.items():
        click.echo(
            f"\n{owner}: batches that stay at the legacy service, which created them: {number}."
        )
    click.echo("")
    lines = [
        [moment(one.at), one.merchant, one.environment, one.what, one.by] for one in found.acts
    ]
    print_table(["when", "merchant", "environment", "what", "who"], lines)


def _as_json(standing: Standing) -> dict[str, Any]:
    return {
        "modes": [
            {
                **one.owner._asdict(),
                "key": one.key or None,
                "group": one.group,
                "mode": one.mode,
                "since": moment(one.since),
            }
            for one in standing.switches
        ],
        "begun_at_legacy": [
            {**owner._asdict(), "batches": number} for owner, number in standing.begun.items()
        ],
        "acts": [
            {
                "at": moment(one.at),
                "what": one.what,
                "by": one.by,
                "merchant": one.merchant,
                "environment": one.environment,
            }
            for one in standing.acts
        ],
    }
