"""`payout-gateway reconcile`: the ledger against the service, by reads only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.command_group import document, environment_option, json_option, merchant_option
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.cli.progress import show_progress
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.operator.in_doubt_writes import Unsettled
    from gateway.operator.ledger_reconciliation import Finding, Reconciler, Report
    from gateway.storage import Store, Tenant

LOST = (
    "what was made after the backup is not known here: compare in the dashboard, before any batch "
    "is started that may have been edited or started since"
)

FROZEN = (
    "something was found, so all writes are frozen from now on; `payout-gateway unfreeze --all` when "
    "that was looked at, and batches are started again"
)

NONE = "No batch and no deleted recipient was compared."

COUNTED = {
    "batches": "batches",
    "abandoned": "abandoned batches",
    "recipients": "deleted recipients",
}


@dataclass(slots=True)
class Compared:
    """What was found; ``was_restored`` and whether that is over now."""

    report: Report
    unsettled: list[Unsettled] = field(default_factory=list)
    left_out: list[Tenant] = field(default_factory=list)
    was_restored: bool = False
    cleared: bool = False

    @property
    def lost(self) -> list[Finding]:
        """What a restored state may have lost."""
        return [*self.report.unknown, *self.report.unlisted] if self.was_restored else []

    @property
    def code(self) -> int:
        if self.report.unreadable:
            return 2
        return 1 if self.report.findings or self.unsettled or self.lost else 0

    @property
    def frozen(self) -> bool:
        """Whether an operator is to look at what was found, before anything of it is paid again."""
        return self.cleared and self.code != 0


@click.command()
@merchant_option
@environment_option
@click.option(
    "--leave-out",
    multiple=True,
    metavar="MERCHANT",
    help="Do not look at a merchant of whom no key is in use; may be given again for more.",
)
@json_option
@config_option
def reconcile(
    *,
    merchant: str | None,
    environment: str | None,
    leave_out: tuple[str, ...],
    as_json: bool,
    settings: Settings,
) -> None:
    """Compare what the gateway knows with what the service has, by reads only.

    Exit 0: they agree. Exit 1: something was found that an operator has to look at. Exit 2: it
    could not be done, or not of everything.

    Nothing is changed at the service. Where somebody started a batch elsewhere the ledger is
    brought up to date. On a state that was restored no batch is started until this was done once
    for every merchant and environment, with nothing unreadable; and where something was found, all
    writes are frozen from then on, until `unfreeze --all`.

    A merchant whose credentials the service does not take any more can be left out once each of its
    keys is revoked. Look in the dashboard at its open batches before you import a key for it again.
    """
    compared = run_to_completion(_compared(settings, merchant, environment, frozenset(leave_out)))
    if as_json:
        document(_as_json(compared))
    else:
        _tell(compared)
    click.get_current_context().exit(compared.code)


async def _compared(
    settings: Settings, merchant: str | None, environment: str | None, leave_out: frozenset[str]
) -> Compared:
    from gateway.config.extensions import check_extensions
    from gateway.operator.in_doubt_writes import load_in_doubt_writes
    from gateway.operator.ledger_reconciliation import open_reconciler
    from gateway.operator.preflight import check_runnable
    from gateway.operator.restore_check import is_older
    from gateway.storage import Tenant, open_store
    from gateway.storage.freezes import freeze

    check_extensions()
    check_runnable(settings)
    async with (
        open_store(settings.state, create=False) as store,
        open_reconciler(settings, store) as reconciler,
    ):
        was_restored = await is_older(store, settings.state.mark)
        owners = await reconciler.owners(merchant, environment)
        if not owners and (merchant or environment):
            raise Mistake(
                "there is no such merchant or environment; `keys list` shows what there is"
            )
        left_out = await _left_out(reconciler, leave_out)
        owners = [one for one in owners if one not in left_out]
        with show_progress("Comparing") as how_far:
            report = await reconciler.reconcile(owners, how_far, was_restored=was_restored)
        report.unreadable = await _with_a_way_out(reconciler, report.unreadable)
        unsettled = [one for one in await load_in_doubt_writes(store) if one.one.owner in owners]
        whole = merchant is None and environment is None and not report.unreadable
        compared = Compared(report, unsettled, left_out, was_restored, was_restored and whole)
        if compared.frozen:
            # First: clients whose starts were refused ask again all the time.
            await freeze(store, Tenant("", ""))
        if compared.cleared:
            await _clear(settings, store)
        return compared


async def _left_out(reconciler: Reconciler, merchants: frozenset[str]) -> list[Tenant]:
    if not merchants:
        return []
    its = [one for one in await reconciler.owners() if one.merchant in merchants]
    if unknown := merchants - {one.merchant for one in its}:
        raise Mistake(f"there is no merchant {min(unknown)}; `keys list` shows what there is")
    without = await reconciler.without_keys()
    if used := [one for one in its if one not in without]:
        raise Mistake(
            f"a key of {used[0]} is in use, and could start a batch that was changed since the backup: "
            "mend its credentials, or revoke its keys"
        )
    return its


async def _with_a_way_out(reconciler: Reconciler, unreadable: list[Finding]) -> list[Finding]:
    without = await reconciler.without_keys() if unreadable else set()
    return [
        replace(
            one,
            do=f"{one.do}, or, as no key of it is in use, with --leave-out {one.owner.merchant}",
        )
        if one.owner in without
        else one
        for one in unreadable
    ]


async def _clear(settings: Settings, store: Store) -> None:
    """The state counts as the latest one from now on, in running gateways too."""
    from gateway.storage import StoreUnavailable
    from gateway.storage.restore_marks import NONE, read_mark, settle_restored, write_mark

    path = settings.state.mark
    try:
        mark = read_mark(path)
    except StoreUnavailable:
        mark = NONE
    mark = await settle_restored(store, mark)
    try:
        write_mark(path, mark)
    except OSError as error:
        click.echo(f"Warning: {path} cannot be written ({error.strerror})", err=True)


# What it says


def _as_json(compared: Compared) -> dict[str, Any]:
    report = compared.report
    return {
        "ok": compared.code == 0,
        "complete": not report.unreadable,
        "restored": compared.was_restored,
        "cleared": compared.cleared,
        "frozen": compared.frozen,
        "compared": report.counts,
        "findings": [
            _finding(one)
            for one in [
                *_alerts_first(report.findings),
                *(replace(lost, do=LOST) for lost in compared.lost),
            ]
        ],
        "unsettled": [
            {**one.one.owner._asdict(), "write": one.id, "what_to_do": one.to_do}
            for one in compared.unsettled
        ],
        "unknown": [_finding(one) for one in report.unknown],
        "unreadable": [_finding(one) for one in report.unreadable],
        "not_listed": [one.owner._asdict() for one in report.unlisted],
        "left_out": [one._asdict() for one in compared.left_out],
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        **one.owner._asdict(),
        "kind": one.kind,
        "id": one.id,
        "upstream": one.upstream,
        "alert": one.alert,
        "recorded": one.recorded,
        "says": one.says,
        "what_to_do": one.do,
    }


def _alerts_first(those: list[Finding]) -> list[Finding]:
    return sorted(those, key=lambda one: (not one.alert, one.owner, one.id))


def _tell(compared: Compared) -> None:
    report = compared.report
    for one in _alerts_first(report.findings):
        click.echo(f"{'ALERT' if one.alert else 'Finding'}: {_line(one)}")
    for one in compared.lost:
        click.echo(f"Finding: {_line(replace(one, do=LOST))}")
    for each in compared.unsettled:
        click.echo(f"Finding: {each.one.owner}: write {each.id} is unsettled: {each.to_do}")
    for one in report.unreadable:
        click.echo(f"Unreadable: {_line(one)}")
    for one in [] if compared.lost else [*report.unknown, *report.unlisted]:
        click.echo(f"For information: {_line(one)}")
    for owner in compared.left_out:
        click.echo(f"Left out: {owner}, of whom no key is in use")
    counts = ", ".join(
        f"{name}: {report.counts[what]}" for what, name in COUNTED.items() if what in report.counts
    )
    click.echo(f"Compared. {counts[:1].upper()}{counts[1:]}." if counts else NONE)
    if compared.was_restored:
        click.echo(f"The state was restored: {_of_starts(compared)}.")


def _of_starts(compared: Compared) -> str:
    """Whether batches are started on a state that was restored, and what is to come before that."""
    if compared.cleared:
        return FROZEN if compared.frozen else "batches are started again"
    if compared.report.unreadable:
        return "no batch is started yet, since not all of it could be read"
    return "no batch is started yet; compare every merchant and environment at once"


def _line(one: Finding) -> str:
    also = f" ({one.upstream} at the service)" if one.upstream else ""
    return f"{one.owner}: {one.id}{also}: {one.says}; {one.do}"
