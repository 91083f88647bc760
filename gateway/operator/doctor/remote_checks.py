"""Checks one environment's service, with reads signed with one tenant's credentials."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.auth.signing import Credentials, shorten_key
from gateway.config.settings import Settings
from gateway.operator.doctor.findings import Finding, State, advise_unreachable
from gateway.upstream.client import Reply, Upstream
from mappings.grammar import Unknown, Unreachable

TARGET = "/v1/recipients?page=1&pageSize=1"
WITHOUT_QUERY = "/v1/recipients"
"""A target without a query: its signature is the same for both values of signed_target."""


UNREACHED = "the service was not reached"
NOT_IT = "the server at this address is not the service"
NO_KEY = "no key of this environment is imported"
FIRST = "fix the errors above first"


class Asking:
    """The calls and results of checking one environment with one tenant's credentials."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        name: str,
        pair: Credentials | None,
        key: str = "",
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self.name = name
        self._pair = pair
        self._named = key
        self._url = settings.environments.configured()[name].base_url
        self.accepted: Reply | None = None
        """The service's answer to a signed read, if it accepted one."""
        self.why_not = ""
        """Why ``accepted_reply`` is None."""
        self.form_is_refused = False

    @property
    def form(self) -> str | None:
        return self._upstream.signed_target.known(self.name)

    async def called(self) -> list[Finding]:
        if self._pair is None:
            self.why_not = NO_KEY
            return [
                self._found("keys", "warning", "no key is imported", self.first),
                self._untried("reachable"),
                self._untried("credentials"),
            ]
        try:
            reply = await self._ask(self.name, TARGET)
            # Twice: the clock skew is only corrected after two answers agree.
            reply = await self._ask(self.name, TARGET)
        except (Unreachable, Unknown) as failure:
            why, self.why_not = str(failure), UNREACHED
            return [
                self._found("reachable", "error", why, advise_unreachable(why, self._url)),
                self._untried("credentials"),
            ]
        reachable = self._found("reachable", "ok", f"answers in {reply.seconds * 1000:.0f} ms")
        return [reachable, *await self._judged(reply)]

    @property
    def first(self) -> str:
        """The advice for a check that was skipped."""
        return "run `keys import`" if self.why_not == NO_KEY else FIRST

    async def asked(self, target: str) -> Reply | None:
        """Sends another read; None if it was not answered."""
        try:
            return await self._ask(self.name, target)
        except (Unreachable, Unknown):
            return None

    def _untried(self, looked_at: str) -> Finding:
        return self._found(looked_at, "skipped", f"skipped: {self.why_not}", self.first)

    async def _ask(self, environment: str, target: str) -> Reply:
        if self._pair is None:
            raise Unreachable(NO_KEY)
        return await self._upstream.send(
            environment, self._pair, "GET", target, None, request_id="doctor", write=False
        )

    def _found(self, looked_at: str, state: State, said: str, do: str = "") -> Finding:
        return Finding(self.name, looked_at, state, said, do)

    async def _judged(self, reply: Reply) -> list[Finding]:
        if 200 <= reply.status < 300 and is_service(reply):
            self.accepted = reply
            return [self._found("credentials", "ok", f"access key {self._key} is accepted")]
        if reply.status == 401:
            self.why_not = "the service refuses signed requests"
            return await self._refused()
        # The legacy interface answers 403 invalid_api_key, the current one 401.
        if reply.status == 403 and "invalid_api_key" not in _codes(reply):
            self.why_not = "the service does not permit requests"
            do = (
                "grant the access key its permissions, or add this machine's address to the service's "
                "allow-list"
            )
            return [self._found("credentials", "error", "not permitted (403)", do)]
        self.why_not = NOT_IT
        return [self._elsewhere(reply), self._untried("credentials")]

    @property
    def _key(self) -> str:
        return shorten_key(self._pair.access_key) if self._pair else ""

    def _elsewhere(self, reply: Reply) -> Finding:
        if reply.status == 403:
            said = "the legacy interface answers at this address: it requires an X-API-Key"
            do = f"{self._url} belongs to legacy_base_url; set base_url to the current interface's"
            return self._found("base_url", "error", said, do)
        said = f"the answer is not of the service (status {reply.status})"
        do = (
            f"check that {self._url} is the current interface's address, without /v1{self._or_path}"
        )
        to = urlsplit(reply.headers.get("Location", ""))
        if 300 <= reply.status < 400 and to.hostname:
            said += f": it redirects to {to.scheme}://{to.hostname}"
        return self._found("base_url", "error", said, do)

    async def _refused(self) -> list[Finding]:
        """Finds out why credentials are refused: the signature scope, or the wrong environment."""
        # With "auto", the client has already tried both forms.
        form = self._settings.upstream.signed_target
        if form != "auto" and await self._is_taken(self.name, WITHOUT_QUERY):
            self.form_is_refused = True
            self.why_not = f"the service does not accept signatures over the {form}"
            said = f"access key {self._key} is accepted if there is no query to sign"
            do = 'set upstream.signed_target to "auto"'
            return [
                self._found("credentials", "ok", said),
                self._found("signature scope", "error", self.why_not, do),
            ]
        # A common mistake: the credentials of one environment imported for the other.
        for other in self._settings.environments.configured():
            if other != self.name and await self._is_taken(other, WITHOUT_QUERY):
                said = f"access key {self._key} is refused here but accepted by {other}"
                do = (
                    f'the credentials belong to {other}: import the key with "environment": '
                    f'"{other}", '
                    f"or replace the credentials: {self._other_pair}"
                )
                return [self._found("credentials", "error", said, do)]
        do = (
            "check that the credentials belong to this environment, that access_key and secret_key "
            "are not swapped, and that vocabulary.current has the service's "
            f"scheme and timestamp_header{self._or_path}. To replace the credentials, "
            f"{self._other_pair}"
        )
        return [self._found("credentials", "error", f"access key {self._key} is refused", do)]

    @property
    def _other_pair(self) -> str:
        """The advice for new credentials. --no-verify, because `rotate-secret` compares the new
        credentials with the stored ones, which are refused.
        """
        # Ready to paste, even if the key's name has spaces.
        name = shlex.quote(self._named) if self._named else "NAME"
        return (
            "make sure that the new ones belong to the same merchant (the gateway cannot "
            "compare them "
            f"with refused ones), then run `payout-gateway keys rotate-secret {name} --no-verify`"
        )

    @property
    def _or_path(self) -> str:
        """A hint if base_url has a path: it is signed, and a prefix that a proxy strips breaks
        signatures.
        """
        if path := urlsplit(self._url).path:
            return f"; perhaps remove the path {path} from base_url"
        return ""

    async def _is_taken(self, environment: str, target: str) -> bool:
        """Whether an environment accepts the credentials.

        Safe to try elsewhere: a signature is valid only for this path and a few seconds.
        """
        try:
            reply = await self._ask(environment, target)
        except (Unreachable, Unknown):
            return False
        return 200 <= reply.status < 300 and is_service(reply)


def _body(reply: Reply) -> Mapping[str, Any]:
    try:
        body: Any = json.loads(bytes(reply.body))
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


def is_service(reply: Reply) -> bool:
    return "ok" in _body(reply)


def _codes(reply: Reply) -> set[str]:
    errors = _body(reply).get("errors")
    given = errors if isinstance(errors, list) else []
    return {str(one.get("code")) for one in given if isinstance(one, Mapping)}
