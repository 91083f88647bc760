"""What is stored about the service of an environment, for `doctor` and the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.config.settings import Upstream
from gateway.observability.plurals import pluralize
from gateway.operator.doctor.findings import Finding
from gateway.operator.rehearsal.report import CAPABILITY_NAME as REHEARSAL
from gateway.upstream.capability_cache import CapabilityCache
from gateway.upstream.optional_endpoints import describe_endpoint_finding
from gateway.upstream.signed_target import CAPABILITY_NAME
from mappings.current import ENDPOINTS

SIGNATURE_CHECK, ENDPOINTS_CHECK = "signature scope", "optional endpoints"


def iter_stored_findings(
    name: str, settings: Upstream, capabilities: CapabilityCache
) -> Iterator[Finding]:
    yield build_scope_finding(name, settings, capabilities)
    yield from iter_endpoint_findings(name, settings, capabilities)
    yield from iter_rehearsal_findings(name, capabilities)


def build_scope_finding(name: str, settings: Upstream, capabilities: CapabilityCache) -> Finding:
    """Says whether signatures cover the query."""
    if settings.signed_target != "auto":
        return Finding(name, SIGNATURE_CHECK, "ok", f"{settings.signed_target}, as configured")
    if form := capabilities.get(name, CAPABILITY_NAME):
        found_at = capabilities.get_discovery_time(name, CAPABILITY_NAME)
        since = f" since {found_at:%Y-%m-%d %H:%M} UTC" if found_at else ""
        return Finding(name, SIGNATURE_CHECK, "ok", f"{form}: the service has accepted it{since}")
    result, advice = "not known yet: no request with a query was accepted", "no action needed"
    return Finding(name, SIGNATURE_CHECK, "skipped", result, advice)


def iter_endpoint_findings(
    name: str, settings: Upstream, capabilities: CapabilityCache
) -> Iterator[Finding]:
    setting = settings.inferred_operations
    if setting != "auto":
        result = f"{'not used' if setting == 'avoid' else 'presumed'}: upstream.inferred_operations is {setting!r}"
        yield Finding(name, ENDPOINTS_CHECK, "ok", result)
        return
    for endpoint in ENDPOINTS:
        if endpoint.is_optional:
            endpoint_name = f"{endpoint.method} {endpoint.path}"
            stored_result = capabilities.get(name, f"inferred {endpoint_name}")
            yield _build_stored_endpoint_finding(name, endpoint_name, stored_result)


def _build_stored_endpoint_finding(
    name: str, endpoint: str, stored_result: Mapping[str, Any] | None
) -> Finding:
    if stored_result is not None:
        answered_at = datetime.fromtimestamp(stored_result["at"], UTC)
        return Finding(
            name,
            endpoint,
            "ok",
            f"{describe_endpoint_finding(stored_result)}, by an answer of the service at "
            f"{answered_at:%Y-%m-%d %H:%M} UTC; not tried now",
        )
    advice = "no action needed; the gateway tries it on first use"
    return Finding(name, endpoint, "skipped", "not tried yet", advice)


def iter_rehearsal_findings(name: str, capabilities: CapabilityCache) -> Iterator[Finding]:
    """Reports the last rehearsal; there are none in the live environment."""
    if name != "sandbox":
        return
    last = capabilities.get(name, REHEARSAL)
    if last is None:
        advice = "run `payout-gateway rehearse --key NAME` with a key of this environment"
        yield Finding(name, REHEARSAL, "skipped", "none yet", advice)
        return
    at, is_ok = datetime.fromtimestamp(last["at"], UTC), last["is_ok"]
    age = pluralize((datetime.now(UTC) - at).days, "day")
    description = f"{at:%Y-%m-%d %H:%M} UTC, {age} ago: {last['verdict']}"
    advice = "" if is_ok else "run `payout-gateway rehearse --key NAME` for the details"
    yield Finding(name, REHEARSAL, "ok" if is_ok else "warning", description, advice)
