"""Checks each configured environment, with the credentials of its first active key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from gateway.auth.key_rows import ListedKey, load_credentials, load_listed_keys
from gateway.config.settings import Settings
from gateway.operator.doctor.findings import ALL_ENVIRONMENTS, Finding
from gateway.operator.doctor.remote_checks import ServiceProbe, is_accepted
from gateway.operator.doctor.stored_findings import (
    ENDPOINTS_CHECK,
    SIGNATURE_CHECK,
    build_scope_finding,
    iter_endpoint_findings,
    iter_rehearsal_findings,
)
from gateway.storage import Store
from gateway.upstream.capability_cache import CapabilityCache
from gateway.upstream.client import UpstreamClient
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS
from gateway.upstream.optional_endpoints import (
    MISSING_STATUSES,
    OptionalEndpoints,
)
from mappings.effects import JSON, Call
from mappings.failures import Failure, Refused, Unreachable

LIST_ENDPOINT = "GET /batches"
LIST_CALL = Call("GET", "/batches", query={"page": "1", "pageSize": "1"}, probe_ids=())
"""The only optional endpoint that can be tried safely: a read that needs no batch."""


async def check_service_per_environment(
    settings: Settings, store: Store, upstream: UpstreamClient, capabilities: CapabilityCache
) -> list[Finding]:
    keys = [key for key in await load_listed_keys(store) if key.revoked_at is None]
    environments = settings.environments.map_configured_environments_by_name()
    # First: these keys are in no environment that is checked below.
    findings = list(_iter_unconfigured_environment_findings(keys, environments))
    if not keys:
        problem = "no key is imported, so every client is refused"
        findings.append(Finding(ALL_ENVIRONMENTS, "keys", "error", problem, "run `keys import`"))
    for name in environments:
        # One key is enough for most checks: all credentials are signed in the same way.
        key = next((key for key in keys if key.environment == name), None)
        credentials = await load_credentials(store, key.tenant) if key else None
        probe = ServiceProbe(settings, upstream, name, credentials, key.name if key else "")
        findings += await probe.check_reachability_and_credentials()
        findings += _iter_signature_scope_findings(probe, settings, capabilities)
        findings += _check_clock(probe, upstream)
        findings += iter_rehearsal_findings(name, capabilities)
        findings += [
            finding async for finding in _check_optional_endpoints(probe, settings, capabilities)
        ]
    return findings


def _iter_unconfigured_environment_findings(
    keys: Sequence[ListedKey], environments: Mapping[str, object]
) -> Iterator[Finding]:
    """Reports keys of environments that are not configured: their clients get 403."""
    for name in dict.fromkeys(
        key.environment for key in keys if key.environment not in environments
    ):
        key_names = ", ".join(key.name for key in keys if key.environment == name)
        description = (
            f"clients of {key_names} get 403, because [environments.{name}] is not configured"
        )
        advice = (
            f"set environments.{name}.base_url, import the key with another environment, or revoke "
            "unused keys with `keys revoke`"
        )
        yield Finding(name, "keys", "error", description, advice)


def _iter_signature_scope_findings(
    probe: ServiceProbe, settings: Settings, capabilities: CapabilityCache
) -> Iterator[Finding]:
    """Reports whether signatures cover the query. A refused form was already reported by ``probe``."""
    name, setting = probe.name, settings.upstream.signed_target
    if probe.accepted_reply:
        suffix = "" if setting == "auto" else " as configured,"
        yield Finding(
            name, SIGNATURE_CHECK, "ok", f"{probe.target_form}:{suffix} accepted just now"
        )
    elif not probe.is_form_refused:
        stored = build_scope_finding(name, settings.upstream, capabilities)
        result = f"{stored.result}; {_describe_skip_reason(probe)}"
        yield Finding(name, SIGNATURE_CHECK, "skipped", result, probe.advice_if_skipped)


def _describe_skip_reason(probe: ServiceProbe) -> str:
    return f"skipped: {probe.failure_reason}"


def _check_clock(probe: ServiceProbe, upstream: UpstreamClient) -> Iterator[Finding]:
    name, offset = probe.name, upstream.clock.offset(probe.name)
    if abs(offset) >= NOTEWORTHY_SKEW_SECONDS:
        advice = "the gateway corrects for it, but synchronize this machine's clock (NTP)"
        direction = "behind" if offset > 0 else "ahead of"
        description = f"this machine is {abs(offset):.0f} s {direction} the service"
        yield Finding(name, "clock", "warning", description, advice)
    elif probe.accepted_reply is None:
        description = f"skipped: {probe.failure_reason}"
        yield Finding(name, "clock", "skipped", description, probe.advice_if_skipped)
    elif "Date" not in probe.accepted_reply.headers:
        advice = "no action needed while calls are accepted; keep this machine's clock synchronized (NTP)"
        yield Finding(name, "clock", "warning", "the service's answers have no Date header", advice)
    else:
        yield Finding(name, "clock", "ok", "in sync with the service")


async def _check_optional_endpoints(
    probe: ServiceProbe, settings: Settings, capabilities: CapabilityCache
) -> AsyncIterator[Finding]:
    if settings.upstream.inferred_operations == "use":
        yield await _check_forced_optional_endpoints(probe)
        return
    for stored in iter_endpoint_findings(probe.name, settings.upstream, capabilities):
        tried_now = None
        if stored.check_name == LIST_ENDPOINT:
            tried_now = await _probe_batch_list_endpoint(probe, capabilities)
        yield tried_now or stored


async def _probe_batch_list_endpoint(
    probe: ServiceProbe, capabilities: CapabilityCache
) -> Finding | None:
    """Tries the list now. The result is stored, so running gateways use it too."""
    if probe.accepted_reply is None:
        return None
    optional_endpoints = OptionalEndpoints("auto", capabilities)
    was_available = (capabilities.get(probe.name, f"inferred {LIST_ENDPOINT}") or {}).get("present")
    refusals: list[int] = []

    async def send_call(call: Call) -> JSON:
        reply = await probe.try_signed_read(f"/v1{call.path}?{urlencode(call.query)}")
        if reply is None:
            raise Unreachable("no answer")
        if is_accepted(reply):
            return {}
        # `probe` also sends a documented read, to distinguish a missing path from a service that is
        # down.
        if call is LIST_CALL:
            refusals.append(reply.status)
        raise Refused(reply.status)

    try:
        # Stores the result, so that running gateways use it too.
        is_available = await optional_endpoints.probe_endpoint(LIST_CALL, probe.name, send_call)
    except Failure:
        return _build_unclear_list_finding(probe.name, refusals[-1]) if refusals else None
    if is_available:
        return Finding(probe.name, LIST_ENDPOINT, "ok", "the service has it: it answered just now")
    description = (
        f"the service does not have it: it answered status {refusals[-1]} just now; batches are "
        "listed from the gateway's records"
    )
    if not was_available:
        return Finding(probe.name, LIST_ENDPOINT, "ok", description)
    description += ". It had it before: batches created elsewhere are no longer listed"
    advice = (
        "if a proxy in front of the service gave this answer, fix the proxy and run `doctor` again"
    )
    return Finding(probe.name, LIST_ENDPOINT, "warning", description, advice)


def _build_unclear_list_finding(name: str, status: int) -> Finding:
    description = f"unclear whether the service has it: it answered status {status} just now, "
    advice = "check which server answers at this address, and run `doctor` again"
    if status in MISSING_STATUSES:
        description += "and a documented read failed too"
    else:
        # Some API gateways answer 403 for every path that they do not know.
        description += "which does not say that there is no such path"
        advice += '; if the service has none, set upstream.inferred_operations = "avoid"'
    advice += "; until then GET /v1/batches fails"
    return Finding(name, LIST_ENDPOINT, "warning", description, advice)


async def _check_forced_optional_endpoints(probe: ServiceProbe) -> Finding:
    """Checks the setting "use", which requires all optional endpoints, by trying one read."""
    name, check_name = probe.name, ENDPOINTS_CHECK
    setting_text = 'upstream.inferred_operations is "use"'
    target = f"/v1{LIST_CALL.path}?{urlencode(LIST_CALL.query)}"
    reply = await probe.try_signed_read(target) if probe.accepted_reply else None
    if reply is not None and is_accepted(reply):
        description = f"{setting_text}; the service answered {LIST_ENDPOINT} just now"
        return Finding(name, check_name, "ok", description)
    if reply is not None and reply.status in MISSING_STATUSES:
        description = f"the service answered {LIST_ENDPOINT} with status {reply.status} just now, but {setting_text}"
        advice = 'set upstream.inferred_operations to "auto"'
        return Finding(name, check_name, "error", description, advice)
    if probe.accepted_reply is None:
        description = f"{setting_text}; {_describe_skip_reason(probe)}"
        return Finding(name, check_name, "skipped", description, probe.advice_if_skipped)
    description = (
        f"{setting_text}; the answer to {LIST_ENDPOINT} does not show whether the service has it"
    )
    return Finding(name, check_name, "warning", description, probe.advice_if_skipped)
