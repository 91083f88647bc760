"""One environment's service, asked by reads that are signed with one pair."""

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
"""Signed the same, whatever a signature covers."""


UNREACHED = "the service was not reached"
NOT_IT = "what answers there is not the service"
NO_KEY = "no key of this environment is imported"
FIRST = "mend what else is wrong first"


class Asking:
    """One environment's service, asked with one pair."""

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
        """What the service answered to a signed read, where it did."""
        self.why_not = ""
        """Why there is no such answer."""
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
                self._untried("pair"),
            ]
        try:
            reply = await self._ask(self.name, TARGET)
            # A second time, because one answer alone is not believed about the clock.
            reply = await self._ask(self.name, TARGET)
        except (Unreachable, Unknown) as failure:
            why, self.why_not = str(failure), UNREACHED
            return [
                self._found("reachable", "error", why, advise_unreachable(why, self._url)),
                self._untried("pair"),
            ]
        reachable = self._found("reachable", "ok", f"answers in {reply.seconds * 1000:.0f} ms")
        return [reachable, *await self._judged(reply)]

    @property
    def first(self) -> str:
        """What to do about what was not tried."""
        return "run `keys import`" if self.why_not == NO_KEY else FIRST

    async def asked(self, target: str) -> Reply | None:
        """One read more; None where it was not answered."""
        try:
            return await self._ask(self.name, target)
        except (Unreachable, Unknown):
            return None

    def _untried(self, looked_at: str) -> Finding:
        return self._found(looked_at, "skipped", f"not tried: {self.why_not}", self.first)

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
            return [self._found("pair", "ok", f"access key {self._key} is accepted")]
        if reply.status == 401:
            self.why_not = "the service refuses what is signed"
            return await self._refused()
        if reply.status == 403 and "invalid_api_key" not in _codes(reply):
            self.why_not = "the service does not permit it"
            do = "the key lacks permission, or this address is not on the service's allow-list"
            return [self._found("pair", "error", "not permitted (403)", do)]
        self.why_not = NOT_IT
        return [self._elsewhere(reply), self._untried("pair")]

    @property
    def _key(self) -> str:
        return shorten_key(self._pair.access_key) if self._pair else ""

    def _elsewhere(self, reply: Reply) -> Finding:
        if reply.status == 403:
            said = "the legacy interface answers there: it wants an X-API-Key"
            do = f"{self._url} belongs to legacy_base_url; set base_url to the current interface's"
            return self._found("base_url", "error", said, do)
        said = f"no answer of the service (status {reply.status})"
        do = f"see that {self._url} is the current interface's address, without /v1{self._or_path}"
        to = urlsplit(reply.headers.get("Location", ""))
        if 300 <= reply.status < 400 and to.hostname:
            said += f": it sends elsewhere, to {to.scheme}://{to.hostname}"
        return self._found("base_url", "error", said, do)

    async def _refused(self) -> list[Finding]:
        """Why a pair is refused: how it is signed, or whose it is."""
        form = self._settings.upstream.signed_target
        if form != "auto" and await self._is_taken(self.name, WITHOUT_QUERY):
            self.form_is_refused = True
            self.why_not = f"the service does not take signatures over the {form}"
            said = f"access key {self._key} is accepted, where there is no query to sign"
            do = 'set upstream.signed_target to "auto"'
            return [
                self._found("pair", "ok", said),
                self._found("signed target", "error", self.why_not, do),
            ]
        for other in self._settings.environments.configured():
            if other != self.name and await self._is_taken(other, WITHOUT_QUERY):
                said = f"access key {self._key} is refused here and accepted at {other}"
                do = (
                    f'it is a pair of {other}: import its key with "environment": "{other}", or '
                    f"give this one its own pair: {self._other_pair}"
                )
                return [self._found("pair", "error", said, do)]
        do = (
            "see that it is this environment's pair, that access_key and secret_key are not "
            "swapped, and that vocabulary.current has the service's own "
            f"scheme and timestamp_header{self._or_path}. For another pair, {self._other_pair}"
        )
        return [self._found("pair", "error", f"access key {self._key} is refused", do)]

    @property
    def _other_pair(self) -> str:
        """The check of `rotate-secret` would refuse every new pair: the stored one sees nothing."""
        name = shlex.quote(self._named) if self._named else "NAME"
        return (
            "make sure that the new one is the same merchant's, since a refused pair cannot be "
            f"compared with it, and then `payout-gateway keys rotate-secret {name} --no-verify`"
        )

    @property
    def _or_path(self) -> str:
        """Signed is the whole path, and a prefix that a proxy takes away is not the service's."""
        if path := urlsplit(self._url).path:
            return f"; the path {path} may not belong in base_url"
        return ""

    async def _is_taken(self, environment: str, target: str) -> bool:
        """A read is signed for this moment and this path alone: elsewhere it tells no secret."""
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
