"""`payout-gateway reconcile`: compares the gateway's records with the service, with reads only."""

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
    "the gateway does not know what happened after the backup: compare it in the dashboard before "
    "you start any batch that may have been edited or started since"
)

FROZEN = (
    "there are findings, so all writes are now frozen. Check the findings, then run "
    "`payout-gateway "
    "unfreeze --all`; after that, batches are started again"
)

NONE = "There was no batch and no deleted recipient to compare."

COUNTED = {
    "batches": "batches",
    "abandoned": "superseded batches",
    "recipients": "deleted recipients",
}


@dataclass(slots=True)
class Compared:
    """The result of a reconciliation. ``is_cleared``: the state counts as up to date again."""

    report: Report
    unsettled: list[Unsettled] = field(default_factory=list)
    left_out: list[Tenant] = field(default_factory=list)
    was_restored: bool = False
    cleared: bool = False

    @property
    def lost(self) -> list[Finding]:
        """Findings that may result from data that a restored state lost."""
        return [*self.report.unknown, *self.report.unlisted] if self.was_restored else []

    @property
    def code(self) -> int:
        if self.report.unreadable:
            return 2
        return 1 if self.report.findings or self.unsettled or self.lost else 0

    @property
    def frozen(self) -> bool:
        """Whether writes were frozen so that an operator checks the findings before anything is
        paid.
        """
        return self.cleared and self.code != 0


@click.command()
@merchant_option
@environment_option
@click.option(
    "--leave-out",
    multiple=True,
    metavar="MERCHANT",
    help="Skip a merchant whose keys are all revoked. Can be repeated.",
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
    """Compare the gateway's records with the service, with reads only.

    Exit code 0: they agree. 1: there are findings to check. 2: the comparison failed or is
    incomplete.

    Nothing is changed at the service. If a batch was started elsewhere, the gateway's records are
    updated. After a restore, no batch is started until you have run this command once for every
    merchant and environment and everything could be read. If there are findings then, all writes
    are frozen until `unfreeze --all`.

    If the service no longer accepts a merchant's credentials, revoke all keys of the merchant and
    skip it with --leave-out. Before you import a key for it again, check its open batches in the
    service's dashboard.
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

    # A configuration that cannot run must fail before any call.
    check_extensions()
    check_runnable(settings)
    async with (
        open_store(settings.state, create=False) as store,
        open_reconciler(settings, store) as reconciler,
    ):
        was_restored = await is_older(store, settings.state.mark)
        owners = await reconciler.owners(merchant, environment)
        if not owners and (merchant or environment):
            raise Mistake("no key has this merchant and environment; `keys list` shows the keys")
        left_out = await _left_out(reconciler, leave_out)
        owners = [one for one in owners if one not in left_out]
        with show_progress("Comparing") as how_far:
            report = await reconciler.reconcile(owners, how_far, was_restored=was_restored)
        report.unreadable = await _with_a_way_out(reconciler, report.unreadable)
        # A write in doubt is a finding: what it changed cannot be compared.
        unsettled = [one for one in await load_in_doubt_writes(store) if one.one.owner in owners]
        whole = merchant is None and environment is None and not report.unreadable
        compared = Compared(report, unsettled, left_out, was_restored, was_restored and whole)
        if compared.frozen:
            # Freeze before clearing: clients retry refused starts all the time, and one could get
            # through.
            await freeze(store, Tenant("", ""))
        if compared.cleared:
            await _clear(settings, store)
        return compared


async def _left_out(reconciler: Reconciler, merchants: frozenset[str]) -> list[Tenant]:
    if not merchants:
        return []
    its = [one for one in await reconciler.owners() if one.merchant in merchants]
    if unknown := merchants - {one.merchant for one in its}:
        raise Mistake(f"there is no merchant {min(unknown)}; `keys list` shows the merchants")
    without = await reconciler.without_keys()
    # A skipped merchant is not compared, so it must not be able to start batches.
    if used := [one for one in its if one not in without]:
        raise Mistake(
            f"a key of {used[0]} is active and could start a batch that was changed after the "
            "backup; "
            "fix its credentials or revoke its keys, then run this command again"
        )
    return its


async def _with_a_way_out(reconciler: Reconciler, unreadable: list[Finding]) -> list[Finding]:
    without = await reconciler.without_keys() if unreadable else set()
    return [
        replace(
            one,
            do=f"{one.do}. All its keys are revoked, so --leave-out {one.owner.merchant} can "
            "skip it",
        )
        if one.owner in without
        else one
        for one in unreadable
    ]


async def _clear(settings: Settings, store: Store) -> None:
    """Marks the state as up to date, also for running gateways."""
    from gateway.storage import StoreUnavailable
    from gateway.storage.restore_marks import NONE, read_mark, settle_restored, write_mark

    path = settings.state.mark
    try:
        mark = read_mark(path)
    # A damaged mark file is replaced below.
    except StoreUnavailable:
        mark = NONE
    mark = await settle_restored(store, mark)
    try:
        write_mark(path, mark)
    except OSError as error:
        click.echo(
            f"Warning: {path} cannot be written ({error.strerror}), so a later restore may go "
            "unnoticed",
            err=True,
        )


# Output


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
        click.echo(f"Finding: {each.one.owner}: write {each.id} is in doubt: {each.to_do}")
    for one in report.unreadable:
        click.echo(f"Unreadable: {_line(one)}")
    for one in [] if compared.lost else [*report.unknown, *report.unlisted]:
        click.echo(f"For information: {_line(one)}")
    for owner in compared.left_out:
        click.echo(f"Left out: {owner}, whose keys are all revoked")
    counts = ", ".join(
        f"{name}: {report.counts[what]}" for what, name in COUNTED.items() if what in report.counts
    )
    click.echo(f"Compared. {counts[:1].upper()}{counts[1:]}." if counts else NONE)
    if compared.was_restored:
        click.echo(f"The state was restored: {_of_starts(compared)}.")


def _of_starts(compared: Compared) -> str:
    """Whether batches are started on a restored state, and what to do if not."""
    if compared.cleared:
        return FROZEN if compared.frozen else "batches are started again"
    if compared.report.unreadable:
        return "no batch is started yet, because something could not be read"
    return "no batch is started yet; run `reconcile` without --merchant and --environment"


def _line(one: Finding) -> str:
    also = f" ({one.upstream} at the service)" if one.upstream else ""
    return f"{one.owner}: {one.id}{also}: {one.says}; {one.do}"
