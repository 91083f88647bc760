"""Checks of the program, its configuration, its certificate, the state and the rate limiter."""

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cryptography import x509
from sqlalchemy import delete, insert

from gateway.admission.limits import find_rate_limit_setting_problems
from gateway.config.settings import ConfigurationError, Server, Settings
from gateway.operator.doctor.findings import ALL_ENVIRONMENTS, Finding, State
from gateway.operator.interruptions import describe_window_scope, format_unfreeze_command
from gateway.operator.preflight import check_settings_are_runnable
from gateway.operator.restore_check import RESTORED_ADVICE, RESTORED_MESSAGE, is_restored
from gateway.storage import Store, StoreUnavailable
from gateway.storage.audit_log import describe_scope
from gateway.storage.brownout_rows import list_planned_and_active_brownouts
from gateway.storage.database import Transaction
from gateway.storage.freezes import list_freezes
from gateway.storage.restore_detection import NO_MARK, load_restore_state
from gateway.storage.tables import counters

_ACCESS_ADVICE = {
    "sqlite": "make the gateway's user the owner of the file and its directory",
    "postgresql": "grant the gateway's user write access to its tables (GRANT ALL ON ALL TABLES IN "
    "SCHEMA public)",
}

EXPIRY_WARNING_PERIOD = timedelta(days=14)


def check_configuration(settings: Settings) -> Iterator[Finding]:
    try:
        check_settings_are_runnable(settings)
    except ConfigurationError as error:
        for problem in error.problems:
            description, _, advice = problem.partition("; ")
            advice = advice or "correct the setting, then run `payout-gateway check`"
            yield Finding(ALL_ENVIRONMENTS, "configuration", "error", description, advice)
    else:
        yield Finding(ALL_ENVIRONMENTS, "configuration", "ok", "valid")


def check_tls_certificate_expiry(server: Server) -> Iterator[Finding]:
    """Checks when the certificate for clients expires; check_configuration checks the rest."""
    if (file := server.tls_certificate_file) is None:
        return
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    # Already reported by check_configuration.
    except (OSError, ValueError):
        return
    check_name, expires_at = "certificate for clients", chain[0].not_valid_after_utc
    description = f"expires at {expires_at:%Y-%m-%d %H:%M} UTC"
    if (remaining := expires_at - datetime.now(UTC)) < EXPIRY_WARNING_PERIOD:
        state: State = "warning" if remaining > timedelta() else "error"
        advice = "replace it; a running gateway loads the new one without a restart"
        consequence = "Clients refuse an expired certificate."
        yield Finding(ALL_ENVIRONMENTS, check_name, state, description, advice, consequence)
    # Browsers fetch a missing intermediate certificate, but most HTTP libraries do not.
    elif len(chain) == 1 and chain[0].issuer != chain[0].subject:
        description += f"; {file} contains no intermediate certificate"
        advice = "append the intermediate certificates, if there are any"
        yield Finding(ALL_ENVIRONMENTS, check_name, "warning", description, advice)
    else:
        yield Finding(ALL_ENVIRONMENTS, check_name, "ok", description)


async def check_redis_eviction_policy(settings: Settings) -> list[Finding]:
    # Redis cannot be asked at an invalid URL, which check_configuration reports.
    if settings.limits.url.startswith("memory://") or any(
        find_rate_limit_setting_problems(settings)
    ):
        return []
    from gateway.admission.limits.in_redis import probe_redis_eviction_policy  # noqa: PLC0415 - see gateway.admission.limits

    result = await probe_redis_eviction_policy(settings.limits.url)
    texts = result.finding, result.hint, "Rate limits would not hold exactly."
    return [Finding(ALL_ENVIRONMENTS, "limits in Redis", result.state, *texts)]


async def check_state_writable_and_current(settings: Settings, store: Store) -> list[Finding]:
    """Checks that the state is writable and not an older copy. Raises StoreUnavailable."""

    # A commit: what is rolled back does not reach a disk that is full.
    async def insert_and_delete(tx: Transaction) -> None:
        await tx.execute(insert(counters).values(name="doctor", value=0))
        await tx.execute(delete(counters).where(counters.c.name == "doctor"))

    try:
        await store.write(insert_and_delete)
    except StoreUnavailable as error:
        happened = (store.database.write_error or error).happened
        raise StoreUnavailable(
            happened,
            means="every write of a client is refused",
            do="free space on its disk if that is full; otherwise "
            + _ACCESS_ADVICE[store.database.dialect],
        ) from None
    if await is_restored(store, settings.state.restore_mark_path):
        description = f"{RESTORED_MESSAGE}: no batch is started on it"
        # Clients are served, except for starts of batches.
        effect = "No batch would be started."
        return [Finding(ALL_ENVIRONMENTS, "state", "error", description, RESTORED_ADVICE, effect)]
    # Before the first write there is no mark that an older copy could be behind.
    history = "nothing shows that it is an older copy"
    mark_path = settings.state.restore_mark_path
    if (await load_restore_state(store)).mark == NO_MARK:
        history = (
            "no write to the service is recorded yet, so an older copy could not be recognised"
        )
    elif not await asyncio.to_thread(mark_path.exists):
        history = f"there is no {mark_path} here, so an older copy could not be recognised"
        # It may be another machine's, but none can create it in a directory like this one.
        if not os.access(mark_path.parent, os.W_OK):
            advice = "let the gateway's user write to its directory, or set state.mark_file"
            return [Finding(ALL_ENVIRONMENTS, "state", "warning", f"writable; {history}", advice)]
    return [Finding(ALL_ENVIRONMENTS, "state", "ok", f"writable; {history}")]


async def check_interruptions(settings: Settings, store: Store) -> list[Finding]:
    """Reports freezes and brownouts that may have been forgotten, and the end of the interface.

    Raises StoreUnavailable.
    """
    now, freezes = store.clock(), await list_freezes(store)
    brownouts = await list_planned_and_active_brownouts(store, now)
    findings = []
    for freeze in freezes:
        since = f"{freeze.since:%Y-%m-%d %H:%M} UTC"
        description = f"writes have been frozen since {since}: {describe_scope(freeze.scope)}"
        description += freeze.reason
        advice = f"to resume them, run `{format_unfreeze_command(freeze.scope)}`"
        environment = freeze.scope.environment or ALL_ENVIRONMENTS
        findings.append(Finding(environment, "freeze", "warning", description, advice))
    for brownout in (each for each in brownouts if each.begins_at <= now):
        until, scope = f"{brownout.ends_at:%Y-%m-%d %H:%M} UTC", describe_window_scope(brownout)
        description = f"requests are refused until {until}: {scope}"
        advice = f"no action needed if this is intended; `payout-gateway brownout off {brownout.id}` ends it"
        findings.append(Finding(ALL_ENVIRONMENTS, "brownout", "warning", description, advice))
    if settings.deprecation.is_refused_on(now.date()):
        description = (
            f"every legacy request has been refused (403) since {settings.deprecation.sunset_date}"
        )
        advice = 'no action needed if this is intended; `deprecation.after_sunset = "serve"` and a restart end it'
        findings.append(Finding(ALL_ENVIRONMENTS, "sunset", "warning", description, advice))
    return findings
