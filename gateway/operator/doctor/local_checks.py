"""Checks of the program, its configuration, its certificate, the state and the rate limiter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from cryptography import x509

from gateway.admission.limits.eviction import check_eviction_policy
from gateway.config.extensions import check_extensions
from gateway.config.settings import Misconfigured, Server, Settings
from gateway.operator.cutover_windows import describe_window_scope
from gateway.operator.doctor.findings import ALL, Finding
from gateway.operator.preflight import check_runnable
from gateway.operator.restore_check import DO, HAPPENED, is_older
from gateway.storage import Store, StoreUnavailable
from gateway.storage.audit_log import told_scope
from gateway.storage.brownout_rows import Brownout, open_brownouts
from gateway.storage.freezes import Freeze, frozen
from gateway.storage.restore_marks import NONE, standing
from gateway.storage.write_probe import refuse_read_only

SOON = timedelta(days=14)


def check_program() -> Iterator[Finding]:
    yield from _told("program", check_extensions)


def check_configuration(settings: Settings) -> Iterator[Finding]:
    yield from _told("configuration", lambda: check_runnable(settings))


def _told(looked_at: str, check: Callable[[], None]) -> Iterator[Finding]:
    try:
        check()
    except Misconfigured as error:
        for problem in error.problems:
            said, _, do = problem.partition("; ")
            yield Finding(
                ALL, looked_at, "error", said, do or "correct the setting, then run `check`"
            )
    else:
        yield Finding(ALL, looked_at, "ok", "valid")


def check_certificate(server: Server) -> Iterator[Finding]:
    """Checks when the certificate for clients expires. check_configuration checks that it can be
    used.
    """
    if (file := server.tls_certificate_file) is None:
        return
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError):
        return
    looked_at, end = "certificate for clients", chain[0].not_valid_after_utc
    told = f"expires at {end:%Y-%m-%d %H:%M} UTC"
    if end < datetime.now(UTC) + SOON:
        do = "replace it; a running gateway loads the new one without a restart"
        yield Finding(ALL, looked_at, "error", told, do)
    elif len(chain) == 1 and chain[0].issuer != chain[0].subject:
        do = "append the intermediate certificates, if there are any"
        yield Finding(
            ALL, looked_at, "warning", f"{told}; {file} contains no intermediate certificate", do
        )
    else:
        yield Finding(ALL, looked_at, "ok", told)


async def check_limits(settings: Settings) -> list[Finding]:
    if settings.limits.url.startswith("memory://"):
        return []
    told = await check_eviction_policy(settings.limits.url)
    return [Finding(ALL, "limits in Redis", told.state, told.said, told.do)]


async def check_state(settings: Settings, store: Store) -> list[Finding]:
    """Checks that the state is writable and not an older copy. Raises StoreUnavailable."""
    await refuse_read_only(store)
    if await is_older(store, settings.state.mark):
        return [Finding(ALL, "state", "error", f"{HAPPENED}: no batch is started on it", DO)]
    # A new state has no mark yet, so an older copy could not be told from it.
    is_new = (await standing(store)).mark == NONE
    known = "is not an older copy, as far as is known"
    what = "is new: nothing was written through it yet" if is_new else known
    return [Finding(ALL, "state", "ok", f"writable; it {what}")]


async def check_operator_switches(store: Store) -> list[Finding]:
    """Freezes and brownouts that may have been forgotten. Raises StoreUnavailable."""
    now = store.clock()
    under_way = [one for one in await open_brownouts(store, now) if one.begins_at <= now]
    return [*map(_freeze, await frozen(store)), *map(_brownout, under_way)]


def _freeze(one: Freeze) -> Finding:
    words = [f"--merchant {one.scope.merchant}"] if one.scope.merchant else []
    words += [f"--environment {one.scope.environment}"] if one.scope.environment else []
    said = f"writes have been frozen since {one.since:%Y-%m-%d %H:%M} UTC: {told_scope(one.scope)}"
    do = f"to resume them, run `payout-gateway unfreeze {' '.join(words) or '--all'}`"
    return Finding(one.scope.environment or ALL, "freeze", "warning", said, do)


def _brownout(one: Brownout) -> Finding:
    does = "refused" if one.refuses else "counted (not refused)"
    said = (
        f"requests are {does} until {one.ends_at:%Y-%m-%d %H:%M} UTC: {describe_window_scope(one)}"
    )
    do = f"nothing if this is intended; `payout-gateway brownout off {one.id}` ends it"
    return Finding(ALL, "brownout", "warning", said, do)


def report_unavailable_state(unavailable: StoreUnavailable) -> Finding:
    said = f"{unavailable.happened}: {unavailable.means}; the services were not checked"
    return Finding(ALL, "state", "error", said, unavailable.do)
