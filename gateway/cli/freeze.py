"""`payout-gateway freeze` and `unfreeze`: writes stopped at once, for whom an operator says."""

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
    "--list", "lists", is_flag=True, help="Only show what is frozen, and who did what when."
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
    """Stop writes at once, in running gateways too; reads go on.

    Of a merchant, an environment, a merchant's environment (both), or --all. What has begun with
    several calls is finished, but for a start; nothing else begins until `unfreeze` with the same
    words. Doing it twice changes nothing. Clients get 403 not_authorized, with a message that says so.
    """
    from gateway.operator.freezes import NoMerchant, load_freeze_status, resolve_freeze_scope
    from gateway.storage import open_store
    from gateway.storage.freezes import freeze as stop

    words = (merchant, environment, everything)
    if lists and any(words):
        raise click.UsageError("--list stands alone")

    async def done() -> tuple[bool | None, list[Freeze], list[AuditEvent]]:
        async with open_store(settings.state, create=False) as store:
            changed = (
                None if lists else await stop(store, await resolve_freeze_scope(store, *scope))
            )
            return changed, *await load_freeze_status(store)

    scope = ("", "") if lists else _exactly_one(*words)
    try:
        told = run_to_completion(done())
    except NoMerchant as why:
        raise Mistake(str(why)) from None
    _show(*told, lists=lists, as_json=as_json, done="Frozen", not_done="frozen already")


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
    """Let writes begin again that `freeze` with the same words stopped.

    Just that freeze ends: a merchant that was also frozen by itself, or by its environment, stays
    so, and what is still frozen is shown.
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
        raise click.UsageError("say --all, or --merchant NAME, --environment, or both of these")
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
        click.echo(f"{done}." if changed else f"Nothing changed: it was {not_done}.")
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
    return [scope.merchant or "every one", scope.environment or "both"]


def _freeze(one: Freeze) -> dict[str, Any]:
    return {**_named(one.scope), "since": moment(one.since)}


def _act(one: AuditEvent) -> dict[str, Any]:
    return {"at": moment(one.at), "what": one.what, "by": one.by, **_named(one.scope)}


def _named(scope: Tenant) -> dict[str, str | None]:
    """None is every one."""
    return {"merchant": scope.merchant or None, "environment": scope.environment or None}
