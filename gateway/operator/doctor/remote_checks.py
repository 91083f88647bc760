"""Checks one environment's service, with reads signed with one tenant's credentials."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.operator.account_checks import FORBIDDEN_ADVICE
from gateway.operator.doctor.findings import Finding, State, advise_on_unreachable_address
from gateway.upstream.client import UpstreamClient
from gateway.upstream.http_connection import Reply
from mappings.failures import Unknown, Unreachable

PROBE_TARGET = "/v1/recipients?page=1&pageSize=1"
TARGET_WITHOUT_QUERY = "/v1/recipients"
"""A target without a query: its signature is the same for both values of signed_target."""


NOT_REACHED = "the service was not reached"
NOT_THE_SERVICE = "the server at this address is not the service"
NO_KEY_IMPORTED = "no key of this environment is imported"
FIX_ERRORS_FIRST = "fix the errors above first"


class ServiceProbe:
    """The calls and results of checking one environment with one tenant's credentials."""

    def __init__(
        self,
        settings: Settings,
        upstream: UpstreamClient,
        name: str,
        credentials: Credentials | None,
        key_name: str = "",
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self.name = name
        self._credentials = credentials
        self._key_name = key_name
        self._url = settings.environments.map_configured_environments_by_name()[name].base_url
        self.accepted_reply: Reply | None = None
        """The service's answer to a signed read, if it accepted one."""
        self.failure_reason = ""
        """Why ``accepted_reply`` is None."""
        self.is_form_refused = False

    @property
    def target_form(self) -> str | None:
        return self._upstream.signed_target.find_form(self.name)

    async def check_reachability_and_credentials(self) -> list[Finding]:
        if self._credentials is None:
            self.failure_reason = NO_KEY_IMPORTED
            return [
                self._build_finding(
                    "keys", "warning", "no key is imported", self.advice_if_skipped
                ),
                self._build_skipped_check_finding("reachable"),
                self._build_skipped_check_finding("credentials"),
            ]
        try:
            reply = await self._send_signed_read(self.name, PROBE_TARGET)
            # Twice: the clock skew is only corrected after two answers agree.
            reply = await self._send_signed_read(self.name, PROBE_TARGET)
        except (Unreachable, Unknown) as failure:
            reason, self.failure_reason = str(failure), NOT_REACHED
            return [
                self._build_finding(
                    "reachable", "error", reason, advise_on_unreachable_address(reason, self._url)
                ),
                self._build_skipped_check_finding("credentials"),
            ]
        reachable = self._build_finding(
            "reachable", "ok", f"answers in {reply.seconds * 1000:.0f} ms"
        )
        return [reachable, *await self._derive_findings_from_reply(reply)]

    @property
    def advice_if_skipped(self) -> str:
        """The advice for a check that was skipped."""
        return "run `keys import`" if self.failure_reason == NO_KEY_IMPORTED else FIX_ERRORS_FIRST

    async def try_signed_read(self, target: str) -> Reply | None:
        """Sends another read; None if it was not answered."""
        try:
            return await self._send_signed_read(self.name, target)
        except (Unreachable, Unknown):
            return None

    def _build_skipped_check_finding(self, check_name: str) -> Finding:
        return self._build_finding(
            check_name, "skipped", f"skipped: {self.failure_reason}", self.advice_if_skipped
        )

    async def _send_signed_read(self, environment: str, target: str) -> Reply:
        if self._credentials is None:
            raise Unreachable(NO_KEY_IMPORTED)
        return await self._upstream.send(
            environment, self._credentials, "GET", target, None, request_id="doctor", write=False
        )

    def _build_finding(
        self, check_name: str, state: State, description: str, advice: str = ""
    ) -> Finding:
        return Finding(self.name, check_name, state, description, advice)

    async def _derive_findings_from_reply(self, reply: Reply) -> list[Finding]:
        if is_accepted(reply):
            self.accepted_reply = reply
            return [
                self._build_finding(
                    "credentials", "ok", f"access key {self._short_access_key} is accepted"
                )
            ]
        if reply.status == 401:
            self.failure_reason = "the service refuses signed requests"
            return await self._diagnose_refused_credentials()
        # The legacy interface answers 403 invalid_api_key, the current one 401.
        if reply.status == 403 and "invalid_api_key" not in _list_error_codes(reply):
            self.failure_reason = "the service does not permit requests"
            return [
                self._build_finding("credentials", "error", "not permitted (403)", FORBIDDEN_ADVICE)
            ]
        self.failure_reason = NOT_THE_SERVICE
        return [
            self._build_wrong_address_finding(reply),
            self._build_skipped_check_finding("credentials"),
        ]

    @property
    def _short_access_key(self) -> str:
        return f"{self._credentials.access_key_prefix}…" if self._credentials else ""

    def _build_wrong_address_finding(self, reply: Reply) -> Finding:
        if reply.status == 403:
            description = "the legacy interface answers at this address: it requires an X-API-Key"
            advice = (
                f"{self._url} belongs to legacy_base_url; set base_url to the current interface's"
            )
            return self._build_finding("base_url", "error", description, advice)
        if reply.status >= 500:
            description = f"the service fails (status {reply.status})"
            advice = (
                "wait until the service, or the proxy in front of it, recovers; if it never worked, "
                f"check that {self._url} is the current interface's address"
            )
            return self._build_finding("base_url", "error", description, advice)
        description = f"the answer is not of the service (status {reply.status})"
        advice = f"check that {self._url} is the current interface's address, without /v1{self._base_url_path_hint}"
        redirect_target = urlsplit(reply.headers.get("Location", ""))
        if 300 <= reply.status < 400 and redirect_target.hostname:
            description += (
                f": it redirects to {redirect_target.scheme}://{redirect_target.hostname}"
            )
        return self._build_finding("base_url", "error", description, advice)

    async def _diagnose_refused_credentials(self) -> list[Finding]:
        """Finds out why credentials are refused: the signature scope, or the wrong environment."""
        # With "auto", the client has already tried both forms.
        form = self._settings.upstream.signed_target
        if form != "auto" and await self._is_signed_read_accepted(self.name, TARGET_WITHOUT_QUERY):
            self.is_form_refused = True
            self.failure_reason = f"the service does not accept signatures over the {form}"
            description = (
                f"access key {self._short_access_key} is accepted if there is no query to sign"
            )
            advice = 'set upstream.signed_target to "auto"'
            return [
                self._build_finding("credentials", "ok", description),
                self._build_finding("signature scope", "error", self.failure_reason, advice),
            ]
        # A common mistake: the credentials of one environment imported for the other.
        for other_environment in self._settings.environments.map_configured_environments_by_name():
            if other_environment != self.name and await self._is_signed_read_accepted(
                other_environment, TARGET_WITHOUT_QUERY
            ):
                description = f"access key {self._short_access_key} is refused here but accepted by {other_environment}"
                advice = (
                    f'the credentials belong to {other_environment}: import the key with "environment": '
                    f'"{other_environment}", '
                    f"or replace the credentials: {self._credentials_replacement_advice}"
                )
                return [self._build_finding("credentials", "error", description, advice)]
        cause = (
            "access_key and secret_key look swapped"
            if self._credentials and self._credentials.look_swapped
            else "check that the credentials belong to this environment, that access_key and "
            "secret_key are not swapped, and that vocabulary.current has the service's scheme and "
            f"timestamp_header{self._base_url_path_hint}"
        )
        advice = f"{cause}. To replace the credentials, {self._credentials_replacement_advice}"
        return [
            self._build_finding(
                "credentials",
                "error",
                f"access key {self._short_access_key} is refused",
                advice,
            )
        ]

    @property
    def _credentials_replacement_advice(self) -> str:
        """The advice for new credentials.

        It has --no-verify, because `rotate-secret` compares the new credentials with the stored
        ones, which are refused.
        """
        # Ready to paste, even if the key's name has spaces.
        name = shlex.quote(self._key_name) if self._key_name else "NAME"
        return (
            "make sure that the new ones belong to the same merchant (the gateway cannot compare "
            f"them with refused ones), then run `payout-gateway keys rotate-secret {name} "
            "--no-verify`"
        )

    @property
    def _base_url_path_hint(self) -> str:
        """A hint if base_url has a path, because a proxy that strips it breaks signatures."""
        if path := urlsplit(self._url).path:
            return f"; perhaps remove the path {path} from base_url"
        return ""

    async def _is_signed_read_accepted(self, environment: str, target: str) -> bool:
        """Whether an environment accepts the credentials.

        Safe to try elsewhere: a signature is valid only for this path and a few seconds.
        """
        try:
            reply = await self._send_signed_read(environment, target)
        except (Unreachable, Unknown):
            return False
        return is_accepted(reply)


def parse_body(reply: Reply) -> Mapping[str, Any]:
    try:
        body: Any = json.loads(bytes(reply.body))
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def is_accepted(reply: Reply) -> bool:
    # All answers of both interfaces have this field; the pages of a proxy do not.
    return 200 <= reply.status < 300 and "ok" in parse_body(reply)


def _list_error_codes(reply: Reply) -> set[str]:
    errors = parse_body(reply).get("errors")
    entries = errors if isinstance(errors, list) else []
    return {str(entry.get("code")) for entry in entries if isinstance(entry, Mapping)}
