"""`payout-gateway freeze` and `unfreeze`: stop and resume writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import document, json_option, moment
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.storage import Tenant
    from gateway.storage.audit_log import AuditEvent
    from gateway.storage.freezes import Freeze

Command = Callable[..., None]


def _scope_options(command: Command) -> Command:
    for option in (
        click.option("--all", "everything", is_flag=True, help="Every merchant, live and sandbox."),
        click.option(
            "--environment", type=click.Choice(["live", "sandbox"]), help="One environment."
        ),
        click.option("--merchant", metavar="NAME", help="One merchant."),
    ):
        command = option(command)
    return command


@click.command()
@_scope_options
@click.option(
    "--list", "lists", is_flag=True, help="Only show active freezes and the audit log of freezes."
)
@json_option
@config_option
def freeze(
    *,
    merchant: str | None,
    environment: str | None,
    everything: bool,
    lists: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Stop writes immediately, in running gateways too; reads continue.

    Give --merchant, --environment, both (that merchant in that environment), or --all. A request of
    several calls that has started is completed, except that no batch is started. Clients get 403
    not_authorized until you run `unfreeze` with the same options. The command is idempotent.
    """
    from gateway.operator.freezes import NoMerchant, load_freeze_status, resolve_freeze_scope
    from gateway.storage import open_store
    from gateway.storage.freezes import freeze as stop

    words = (merchant, environment, everything)
    if lists and any(words):
        raise click.UsageError("--list cannot be combined with --all, --merchant or --environment")

    async def done() -> tuple[bool | None, list[Freeze], list[AuditEvent]]:
        async with open_store(settings.state, create=False) as store:
            changed = (
                None if lists else await stop(store, await resolve_freeze_scope(store, *scope))
            )
            return changed, *await load_freeze_status(store)

    # Validated outside the coroutine, so that a usage error does not open the state.
    scope = ("", "") if lists else _exactly_one(*words)
    try:
        told = run_to_completion(done())
    except NoMerchant as why:
        raise Mistake(str(why)) from None
    _show(*told, lists=lists, as_json=as_json, done="Frozen", not_done="already frozen")


@click.command()
@_scope_options
@json_option
@config_option
def unfreeze(
    *,
    merchant: str | None,
    environment: str | None,
    everything: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Resume writes that `freeze` with the same options stopped.

    Only that freeze ends: a merchant that is also frozen by another freeze stays frozen. The
    freezes that remain are shown.
    """
    from gateway.operator.freezes import NoMerchant, load_freeze_status, resolve_freeze_scope
    from gateway.storage import open_store
    from gateway.storage.freezes import unfreeze as let

    scope = _exactly_one(merchant, environment, everything)

    async def done() -> tuple[bool | None, list[Freeze], list[AuditEvent]]:
        async with open_store(settings.state, create=False) as store:
            changed = await let(store, await resolve_freeze_scope(store, *scope))
            return changed, *await load_freeze_status(store)

    try:
        told = run_to_completion(done())
    except NoMerchant as why:
        raise Mistake(str(why)) from None
    _show(*told, lists=False, as_json=as_json, done="Unfrozen", not_done="not frozen")


def _exactly_one(
    merchant: str | None, environment: str | None, everything: bool
) -> tuple[str, str]:
    if everything == bool(merchant or environment):
        raise click.UsageError("give --all, --merchant NAME, --environment, or both of the latter")
    return merchant or "", environment or ""


def _show(
    changed: bool | None,
    frozen: list[Freeze],
    acts: list[AuditEvent],
    *,
    lists: bool,
    as_json: bool,
    done: str,
    not_done: str,
) -> None:
    if as_json:
        told = {"changed": changed} if changed is not None else {}
        document(
            {**told, "frozen": [_freeze(one) for one in frozen], "acts": list(map(_act, acts))}
        )
        return
    if changed is not None:
        click.echo(f"{done}." if changed else f"Nothing changed: {not_done}.")
    if frozen:
        rows = [[*_words(one.scope), moment(one.since)] for one in frozen]
        print_table(["merchant", "environment", "frozen since"], rows)
    else:
        click.echo("Nothing is frozen.")
    if lists and acts:
        click.echo("")
        lines = [[moment(act.at), act.what, *_words(act.scope), act.by] for act in acts]
        print_table(["when", "what", "merchant", "environment", "who"], lines)


def _words(scope: Tenant) -> list[str]:
    return [scope.merchant or "all", scope.environment or "both"]


def _freeze(one: Freeze) -> dict[str, Any]:
    return {**_named(one.scope), "since": moment(one.since)}


def _act(one: AuditEvent) -> dict[str, Any]:
    return {"at": moment(one.at), "what": one.what, "by": one.by, **_named(one.scope)}


def _named(scope: Tenant) -> dict[str, str | None]:
    """None means all."""
    return {"merchant": scope.merchant or None, "environment": scope.environment or None}
