"""Checks each environment's service, with reads signed with the credentials of its first key."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

from msgspec import structs

from gateway.auth.key_rows import ListedKey, load_credentials, load_listed_keys
from gateway.auth.signing import SWAPPED_HINT, Credentials
from gateway.config.settings import Settings, Upstream
from gateway.operator import PROBE_TARGET
from gateway.operator.account_checks import FORBIDDEN_ADVICE
from gateway.operator.doctor.findings import (
    ALL_ENVIRONMENTS,
    Finding,
    State,
    advise_on_unreachable_address,
)
from gateway.payloads import json_codec
from gateway.storage import Store
from gateway.storage.capability_cache import CapabilityCache
from gateway.upstream.client import UpstreamClient
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS
from gateway.upstream.http_connection import Reply
from gateway.upstream.optional_endpoints import (
    OptionalEndpoints,
    describe_endpoint_finding,
)
from gateway.upstream.signed_target import CAPABILITY_NAME
from gateway.writes.call_sender import derive_status_from_error_codes
from mappings.current import ENDPOINTS
from mappings.effects import JSON, Call
from mappings.failures import Failure, Refused, Unknown, Unreachable

TARGET_WITHOUT_QUERY = "/v1/recipients"
"""A target without a query: its signature is the same for both values of signed_target."""

LIST_ENDPOINT = "GET /batches"
LIST_CALL = Call("GET", "/batches", query={"page": "1", "pageSize": "1"}, probe_ids=())
"""The only optional endpoint that can be tried safely: a read that needs no batch."""
LIST_MISSING = (
    "the service does not have it: it refused it just now; batches are listed from the gateway's "
    "records"
)
UNCLEAR_LIST_ADVICE = (
    "check which server answers at this address, and run `doctor` again; if the service has no such "
    'path, set upstream.inferred_operations = "avoid"; until then GET /v1/batches fails'
)


async def check_service_per_environment(
    settings: Settings, store: Store, upstream: UpstreamClient, capabilities: CapabilityCache
) -> list[Finding]:
    keys = [key for key in await load_listed_keys(store) if key.revoked_at is None]
    environments = settings.environments.map_configured_environments_by_name()
    # First: these keys are in no environment that is checked below.
    findings = list(_iter_unconfigured_environment_findings(keys, environments))
    if not keys:
        problem = "no key is imported, so every client is refused"
        findings.append(
            Finding(ALL_ENVIRONMENTS, "keys", "error", problem, "run `payout-gateway keys import`")
        )
    for name in environments:
        # One key is enough: all credentials are signed in the same way.
        key = next((key for key in keys if key.environment == name), None)
        credentials = await load_credentials(store, key.tenant) if key else None
        check = _ServiceCheck(settings, upstream, capabilities, name, credentials)
        findings += await check.run(key.name if key else "")
    return findings


def _iter_unconfigured_environment_findings(
    keys: Sequence[ListedKey], environments: Mapping[str, object]
) -> Iterator[Finding]:
    """Reports keys of environments that are not configured: their clients get 403."""
    names = dict.fromkeys(key.environment for key in keys)
    for name in [name for name in names if name not in environments]:
        key_names = ", ".join(key.name for key in keys if key.environment == name)
        reason = f"[environments.{name}] is not configured"
        description = f"clients of {key_names} get 403, because {reason}"
        advice = (
            f"set environments.{name}.base_url, import the key with another environment, or revoke "
            "unused keys with `payout-gateway keys revoke`"
        )
        yield Finding(name, "keys", "error", description, advice)


@dataclass(slots=True)
class _ServiceCheck:
    """The checks of one environment, and what they have found so far."""

    settings: Settings
    upstream: UpstreamClient
    capabilities: CapabilityCache
    name: str
    credentials: Credentials | None
    findings: list[Finding] = field(default_factory=list)
    accepted_reply: Reply | None = None
    """The service's answer to a signed read, if it accepted one."""
    skip_reason: str = ""
    """Why there is none."""

    @property
    def url(self) -> str:
        return self.settings.environments.map_base_urls_by_environment()[self.name]

    @property
    def key_prefix(self) -> str:
        return f"{self.credentials.access_key_prefix}…" if self.credentials else ""

    async def run(self, key_name: str) -> list[Finding]:
        if self.credentials is None:
            self.skip_reason = "no key of this environment is imported"
            self._add("keys", "warning", "no key is imported", "run `payout-gateway keys import`")
            self._add_skipped("reachable")
            self._add_skipped("credentials")
        else:
            await self._check_credentials(self.credentials, key_name)
        self._check_signature_scope()
        self._check_clock()
        await self._check_optional_endpoints()
        return self.findings

    def _add(self, check_name: str, state: State, result: str, advice: str = "") -> None:
        self.findings.append(Finding(self.name, check_name, state, result, advice))

    def _add_skipped(self, check_name: str, known: str = "") -> None:
        advice = (
            "fix the errors above first" if self.credentials else "run `payout-gateway keys import`"
        )
        self._add(check_name, "skipped", f"{known}skipped: {self.skip_reason}", advice)

    async def _read(self, target: str, environment: str = "") -> Reply:
        """Sends a signed read; raises Unreachable, also for other failures.

        The status of a reply that refuses with 2xx and ``ok: false`` is that of its errors.
        """
        if self.credentials is None:
            raise Unreachable(self.skip_reason)
        request = (environment or self.name, self.credentials, "GET", target, None)
        try:
            reply = await self.upstream.send(*request, request_id="doctor", write=False)
        except Unknown as failure:
            raise Unreachable(str(failure)) from None
        body = (reply.status < 300 and json_codec.loads_object(reply.body)) or {}
        if body.get("ok") is False:
            return structs.replace(reply, status=derive_status_from_error_codes(body))
        return reply

    async def _is_accepted_without_query(self, environment: str) -> bool:
        """Whether an environment accepts the credentials.

        Safe to try elsewhere: a signature is valid only for this path and a few seconds.
        """
        try:
            return _is_accepted(await self._read(TARGET_WITHOUT_QUERY, environment))
        except Unreachable:
            return False

    # Address and credentials

    async def _check_credentials(self, credentials: Credentials, key_name: str) -> None:
        try:
            reply = await self._read(PROBE_TARGET)
            # Twice: the clock skew is only corrected after two answers agree.
            reply = await self._read(PROBE_TARGET)
        except Unreachable as failure:
            self.skip_reason = "the service was not reached"
            advice = advise_on_unreachable_address(str(failure), self.url)
            self._add("reachable", "error", str(failure), advice)
            self._add_skipped("credentials")
            return
        self._add("reachable", "ok", f"answers in {reply.seconds * 1000:.0f} ms")
        if _is_accepted(reply):
            self.accepted_reply = reply
            self._add("credentials", "ok", f"access key {self.key_prefix} is accepted")
        elif reply.status == 401:
            self.skip_reason = "the service refuses signed requests"
            await self._diagnose_refused_credentials(credentials, key_name)
        # The legacy interface answers 403 invalid_api_key, the current one 401.
        elif reply.status == 403 and b"invalid_api_key" not in bytes(reply.body):
            self.skip_reason = "the service does not permit requests"
            self._add("credentials", "error", "not permitted (403)", FORBIDDEN_ADVICE)
        else:
            self.skip_reason = "the service gave no answer that can be used"
            self._add("base_url", "error", *self._describe_wrong_address(reply))
            self._add_skipped("credentials")

    def _describe_wrong_address(self, reply: Reply) -> tuple[str, str]:
        """Returns what answers at the address, and advice."""
        if reply.status == 403:
            return (
                "the legacy interface answers at this address: it requires an X-API-Key",
                f"{self.url} belongs to legacy_base_url; set base_url to the current interface's",
            )
        if reply.status >= 500:
            advice = (
                "wait until the service, or the proxy in front of it, recovers; if it never "
                f"worked, check that {self.url} is the current interface's address"
            )
            return f"the service fails (status {reply.status})", advice
        if reply.status == 429:
            advice = "wait, and run `doctor` again; clients that reach this limit get 429 as well"
            return "the service refuses more requests now, by its rate limit (status 429)", advice
        description = f"the response is not one of the service (status {reply.status})"
        target = urlsplit(reply.headers.get("Location", ""))
        if 300 <= reply.status < 400 and target.hostname:
            description += f": it redirects to {target.scheme}://{target.hostname}"
        advice = f"check that {self.url} is the current interface's address, without /v1"
        return description, f"{advice}{self._path_hint}"

    @property
    def _path_hint(self) -> str:
        """A hint if base_url has a path, because a proxy that strips it breaks signatures."""
        path = urlsplit(self.url).path
        return f"; perhaps remove the path {path} from base_url" if path else ""

    async def _diagnose_refused_credentials(self, credentials: Credentials, key_name: str) -> None:
        """Finds out why credentials are refused: the signature scope, or the wrong environment."""
        # With "auto", the client has already tried both forms.
        form = self.settings.upstream.signed_target
        if form != "auto" and await self._is_accepted_without_query(self.name):
            self.skip_reason = f"the service does not accept signatures over the {form}"
            accepted = f"access key {self.key_prefix} is accepted if there is no query to sign"
            self._add("credentials", "ok", accepted)
            advice = 'set upstream.signed_target to "auto"'
            self._add(SIGNATURE_CHECK, "error", self.skip_reason, advice)
            return
        # It has --no-verify, because `rotate-secret` compares the new credentials with the stored
        # ones, which are refused. Ready to paste, even if the key's name has spaces.
        replacement = (
            "make sure that the new ones belong to the same merchant (the gateway cannot compare "
            f"them with refused ones), then run `payout-gateway keys rotate-secret "
            f"{shlex.quote(key_name)} --no-verify`"
        )
        # A common mistake: the credentials of one environment imported for the other.
        for other in self.settings.environments.map_configured_environments_by_name():
            if other != self.name and await self._is_accepted_without_query(other):
                self._add(
                    "credentials",
                    "error",
                    f"access key {self.key_prefix} is refused here but accepted by {other}",
                    f'the credentials belong to {other}: import the key with "environment": '
                    f'"{other}", or replace the credentials: {replacement}',
                )
                return
        cause = (
            SWAPPED_HINT
            if credentials.look_swapped
            else "check that the credentials belong to this environment, that access_key and "
            "secret_key are not swapped, and that vocabulary.current has the service's scheme and "
            f"timestamp_header{self._path_hint}"
        )
        self._add(
            "credentials",
            "error",
            f"access key {self.key_prefix} is refused",
            f"{cause}. To replace the credentials, {replacement}",
        )

    # Signature scope and clock

    def _check_signature_scope(self) -> None:
        """Reports whether signatures cover the query, unless a refused form was reported."""
        if self.accepted_reply:
            form = self.upstream.signed_target.find_form(self.name)
            suffix = "" if self.settings.upstream.signed_target == "auto" else " as configured,"
            self._add(SIGNATURE_CHECK, "ok", f"{form}:{suffix} accepted just now")
        elif all(finding.check_name != SIGNATURE_CHECK for finding in self.findings):
            stored = build_scope_finding(self.name, self.settings.upstream, self.capabilities)
            self._add_skipped(SIGNATURE_CHECK, f"{stored.result}; ")

    def _check_clock(self) -> None:
        offset = self.upstream.clock.offset(self.name)
        if abs(offset) >= NOTEWORTHY_SKEW_SECONDS:
            advice = "the gateway corrects for it, but synchronize this machine's clock (NTP)"
            direction = "behind" if offset > 0 else "ahead of"
            result = f"this machine is {abs(offset):.0f} s {direction} the service"
            self._add("clock", "warning", result, advice)
        elif self.accepted_reply is None:
            self._add_skipped("clock")
        elif "Date" not in self.accepted_reply.headers:
            advice = "no action needed while calls are accepted; keep this machine's clock synchronized (NTP)"
            self._add("clock", "warning", "the service's answers have no Date header", advice)
        else:
            self._add("clock", "ok", "in sync with the service")

    # Optional endpoints

    async def _check_optional_endpoints(self) -> None:
        """Reports what is known of the optional endpoints, after trying the list."""
        settings = self.settings.upstream
        stored = [*iter_endpoint_findings(self.name, settings, self.capabilities)]
        if self.accepted_reply and settings.inferred_operations != "avoid":
            stored = [finding for finding in stored if finding.check_name != LIST_ENDPOINT]
            await self._try_batch_list()
        self.findings += stored

    async def _try_batch_list(self) -> None:
        """Tries the list now, and stores the result, so that running gateways use it too."""
        capability = self.capabilities.get(self.name, f"inferred {LIST_ENDPOINT}") or {}

        async def send_call(call: Call) -> JSON:
            reply = await self._read(f"/v1{call.path}?{urlencode(call.query)}")
            if not _is_accepted(reply):
                raise Refused(reply.status)
            return {}

        endpoints = OptionalEndpoints("auto", self.capabilities)
        try:
            is_available = await endpoints.probe_endpoint(LIST_CALL, self.name, send_call)
        except Failure as failure:
            reason = str(failure)
            if isinstance(failure, Refused):
                reason = f"it answered status {failure.status} just now"
            problem = f"unclear whether the service has it: {reason}"
            self._add(LIST_ENDPOINT, "warning", problem, UNCLEAR_LIST_ADVICE)
            return
        if is_available:
            self._add(LIST_ENDPOINT, "ok", "the service has it: it answered just now")
        elif self.settings.upstream.inferred_operations == "use":
            problem = 'upstream.inferred_operations is "use", but the service does not have it'
            advice = 'set upstream.inferred_operations to "auto"'
            self._add(LIST_ENDPOINT, "error", problem, advice)
        elif capability.get("present"):
            problem = f"{LIST_MISSING}. It had it before: batches created elsewhere are not listed"
            advice = "if a proxy in front of the service refused it, fix it and run `doctor` again"
            self._add(LIST_ENDPOINT, "warning", problem, advice)
        else:
            self._add(LIST_ENDPOINT, "ok", LIST_MISSING)


def _is_accepted(reply: Reply) -> bool:
    # All answers of both interfaces have this field; the pages of a proxy do not.
    return 200 <= reply.status < 300 and "ok" in (json_codec.loads_object(reply.body) or ())


# What is stored, which the console shows without a call


SIGNATURE_CHECK, ENDPOINTS_CHECK = "signature scope", "optional endpoints"


def iter_stored_findings(
    name: str, settings: Upstream, capabilities: CapabilityCache
) -> Iterator[Finding]:
    yield build_scope_finding(name, settings, capabilities)
    yield from iter_endpoint_findings(name, settings, capabilities)


def build_scope_finding(name: str, settings: Upstream, capabilities: CapabilityCache) -> Finding:
    """Says whether signatures cover the query."""
    if settings.signed_target != "auto":
        return Finding(name, SIGNATURE_CHECK, "ok", f"{settings.signed_target}, as configured")
    if form := capabilities.get(name, CAPABILITY_NAME):
        return Finding(name, SIGNATURE_CHECK, "ok", f"{form}: the service has accepted it")
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
    for endpoint in (f"{each.method} {each.path}" for each in ENDPOINTS if each.is_optional):
        if stored := capabilities.get(name, f"inferred {endpoint}"):
            answered_at = f"{datetime.fromtimestamp(stored['at'], UTC):%Y-%m-%d %H:%M} UTC"
            source = f"by an answer of the service at {answered_at}; not tried now"
            result = f"{describe_endpoint_finding(stored)}, {source}"
            yield Finding(name, endpoint, "ok", result)
        else:
            advice = "no action needed; the gateway tries it on first use"
            yield Finding(name, endpoint, "skipped", "not tried yet", advice)
