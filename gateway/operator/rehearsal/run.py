"""One run of a rehearsal: sends its requests, and collects what each of them shows."""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.operator import PROBE_TARGET, REFERENCE_PREFIX
from gateway.operator.rehearsal.scenario import BODIES, Step
from gateway.payloads import json_codec
from gateway.upstream.client import UpstreamClient, open_upstream_client
from gateway.upstream.clock import ServiceClock
from gateway.upstream.http_connection import Reply
from mappings.effects import JSON
from mappings.failures import Unknown, Unreachable
from mappings.payloads import extract_batch, find_payments

ENVIRONMENT = "sandbox"
UNKNOWN_BATCH = "B-0000000000000000000000"
RATE_LIMITED = 429
AGAIN = "run the same command again"
MISSING_PATH_STATUSES = {404, 405, 501}
WAIT_SECONDS, RATE_LIMIT_SECONDS, RETRY_SECONDS = 20, 90, 5
"""How long to wait at most for a batch and for the end of a rate limit, and for each attempt."""
TOO_OLD_SECONDS = 35
"""The age from which the gateway presumes that an unanswered request cannot be carried out."""
DELAYED = {"update_recipient", "update_payout_method", "list-bank"}
"""What is changed or saved by requests that wait, so that timestamps differ."""
TIMESTAMP_SECONDS = 1.1
"""That wait, because a service may give its times in whole seconds."""

COMPARISONS: Mapping[str, tuple[str, Callable[[Any, str], bool]]] = {
    "": ("is missing", lambda found, _: found is not None),
    "=": ("has another value", lambda found, value: str(found) == value),
    "!=": ("has the same value", lambda found, value: str(found) != value),
    "in": ("has another value", lambda found, value: str(found) in value.split()),
    "has": ("lacks it", lambda found, value: value in str(found)),
    "lacks": ("has what it should not", lambda found, value: value not in str(found)),
}
"""Of the values in answers, and how a difference is described."""


class Exchange(NamedTuple):
    """A call of the service; the decoded bodies are empty if they are no JSON objects."""

    method: str
    path: str
    sent: dict[str, Any]
    body: dict[str, Any]
    reply: Reply
    is_json: bool

    @property
    def is_failure(self) -> bool:
        """Whether the service or a proxy has failed, so that the answer may be another next time."""
        status = self.reply.status
        is_broken = status >= 500 or status in (401, RATE_LIMITED) or not self.is_json
        return is_broken and status not in MISSING_PATH_STATUSES

    @property
    def is_accepted(self) -> bool:
        is_ok = 200 <= self.reply.status < 300 and self.body.get("ok") is not False
        return is_ok and not self.is_failure

    def __str__(self) -> str:
        if not self.is_json:
            return f"status {self.reply.status}, without JSON"
        return "accepted" if self.is_accepted else format_answer(self.reply.status, self.body)


def format_answer(status: int, body: JSON) -> str:
    """Formats status, codes and fields, without messages, which may quote data."""
    errors = body.get("errors") if isinstance(body, dict) else None
    shown = [e for e in errors if isinstance(e, dict)][:3] if isinstance(errors, list) else []
    texts = [" on ".join(str(e[name]) for name in ("code", "field") if e.get(name)) for e in shown]
    return ", ".join([f"status {status}", *texts])


class RecordingClient(UpstreamClient):
    """Records requests and answers; a rehearsal has many, so it waits if their rate is limited.

    ``failure`` describes the last failure of the service.
    """

    def __init__(self, show_progress: Callable[[str], None], *parts: Any) -> None:
        super().__init__(*parts)
        self.show_progress = show_progress
        self.exchanges: list[Exchange] = []
        self.failure, self._limited_since = "", 0.0

    async def send(self, *request: Any, **options: Any) -> Reply:
        _environment, _credentials, method, target, body = request
        try:
            while (reply := await super().send(*request, **options)).status == RATE_LIMITED:
                given = reply.headers.get("Retry-After", "")
                seconds = max(1, int(given)) if given.isdecimal() else RETRY_SECONDS
                self._limited_since = self._limited_since or time.monotonic()
                if time.monotonic() + seconds > self._limited_since + RATE_LIMIT_SECONDS:
                    break
                self.show_progress(f"the service limits the rate of requests: waiting {seconds} s")
                await asyncio.sleep(seconds)
            else:
                self._limited_since = 0.0
        except (Unreachable, Unknown) as failure:
            self.failure = f"it does not answer {method} {target.partition('?')[0]}: {failure}"
            raise
        exchange = build_exchange(method, target, body, reply)
        if exchange.is_failure:
            self.failure = f"it answers {method} {exchange.path} with {exchange}"
        self.exchanges.append(exchange)
        return reply


def build_exchange(method: str, target: str, body: Any, reply: Reply) -> Exchange:
    sent, answer = _decode(body), _decode(reply.body)
    shown = answer if isinstance(answer, dict) else {}
    return Exchange(method, target.partition("?")[0], sent, shown, reply, answer is not None)


def _decode(data: Any) -> Any:
    """Decodes a body: empty if there is none, None if it is no JSON."""
    try:
        return json_codec.loads(bytes(data)) if data else {}
    except json_codec.JsonError:
        return None


class RehearsalStopped(Exception):
    """The operator has interrupted it, or the service fails. The message is one line."""


Results = dict[str, tuple[bool | None, str]]
"""By row: whether it is as expected (None: it could not be tried), and what was seen."""


@dataclass(slots=True)
class RehearsalRun:
    """The state of a run. ``session`` reaches the gateway, and ``client`` is the gateway's own.

    ``results`` has what was seen so far, by operation and by assumption, without messages and data.
    ``values`` are what the texts of the scenario refer to.
    """

    settings: Settings
    credentials: Credentials
    session: aiohttp.ClientSession
    client: RecordingClient
    may_start: bool
    is_interrupted: Callable[[], bool]
    results: Results = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    probes: dict[str, Exchange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = self.settings.vocabulary
        self.values = {
            "reference": f"{REFERENCE_PREFIX}{secrets.token_hex(4)}",
            "amount": "36.10",
            "current_wallet": words.current.wallet,
            **words.current.model_dump(),
            **words.legacy.model_dump(),
        }
        self.save_id("unknown", UNKNOWN_BATCH, UNKNOWN_BATCH)

    async def take_step(self, step: Step) -> None:
        """Sends the request of a step, and records what it shows; raises RehearsalStopped."""
        if self.is_interrupted():
            raise RehearsalStopped(f"interrupted; {AGAIN}")
        saves = dict(text.split(" = ") for text in step.saves.split(", ") if text)
        # No edit reaches the service then.
        is_avoided = self.settings.upstream.inferred_operations == "avoid" and step.row == "edits"
        if is_avoided or saves.keys() & self.values.keys():
            return
        name = next(iter(saves), "")
        country = name[-2:] if name[-2:].isupper() else "US"
        values = {**self.values, "name": name, "country": country}
        parts = [BODIES[name] for name in step.body.split()]
        body = {key: value for part in parts for key, value in part.items()}
        try:
            *kind, method, target = fill_in(step.request, values).split(" ")
            body = json.loads(fill_in(json.dumps(body), values))
            expected = fill_in(step.answer, values)
        except KeyError:  # the row that saves the value has failed, and says so
            return
        send = self._send_probe if kind else self._send_legacy
        await asyncio.sleep(TIMESTAMP_SECONDS if {step.row, name} & DELAYED else 0)
        self.client.failure = ""
        try:
            status, answer = await send(step.row, method, target, body or None)
        except RehearsalStopped:
            # Stops the run if the service is down, and not this path only.
            await self.call_service("GET", PROBE_TARGET)
            self.record(step.row, is_ok=None, seen=self.client.failure)
            return
        difference = find_difference(status, answer, expected) if expected else ""
        if difference or not expected:
            await self._stop_if_service_fails(step.row, status)
        if expected:
            is_list = step.row in ("list filters", "list order")
            names = re.findall(r"&(orderBy=\w+|\w+)", target) if is_list else ()
            seen = f"{difference} with {', '.join(names)}" if names else difference
            is_ok: bool | None = not difference
            # The answer for a batch that is not funded.
            if step.row == "start_batch" and "invalid_status" in difference:
                is_ok, seen = None, "the balance of the sandbox may be too low"
            self.record(step.row, is_ok=is_ok, seen=seen)
        for name, place in saves.items():
            if status < 400 and not difference and (value := find_value(answer, place)):
                bodies = (normalize(call.body) for call in reversed(self.client.exchanges))
                current_value = next(filter(None, (find_value(body, place) for body in bodies)), "")
                self.save_id(name, str(value), str(current_value))

    async def _stop_if_service_fails(self, row: str, status: int) -> None:
        """Raises RehearsalStopped if the service has failed, and not at this path only."""
        failure = self.client.failure
        if not failure or (row, status) == ("refused signature", 401):
            return
        if status != RATE_LIMITED:
            with suppress(RehearsalStopped):
                if (await self.call_service("GET", PROBE_TARGET)).is_accepted:
                    return
        raise RehearsalStopped(f"the sandbox has failed: {failure}; {AGAIN}")

    async def _send_legacy(self, _row: str, method: str, target: str, body: JSON) -> Any:
        async with self.session.request(method, target, json=body) as response:
            return response.status, await response.json(content_type=None)

    async def _send_probe(self, row: str, method: str, target: str, body: JSON) -> Any:
        """Calls the service; waits for a batch that is being processed."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            call = self.probes[row] = await self.call_service(method, target, body, row)
            if call.is_failure:
                self.client.failure = f"it answers {method} {call.path} with {call}"
            is_over = extract_batch(call.body).get("status") != "processing"
            if is_over or time.monotonic() > deadline:
                return call.reply.status, normalize(call.body)
            await asyncio.sleep(1)

    async def call_service(
        self, method: str, target: str, body: JSON = None, row: str = ""
    ) -> Exchange:
        """Calls the service itself; raises RehearsalStopped if it does not answer."""
        credentials, data = self.credentials, None if body is None else json_codec.dumps(body)
        if row == "refused signature":
            credentials = Credentials(credentials.access_key, "a wrong secret")
        request = (ENVIRONMENT, credentials, method, target, data)
        options: dict[str, Any] = {"request_id": "rehearsal", "write": method != "GET"}
        try:
            if row == "request age":
                # With a client of its own, which does not know the skew of this clock.
                offset = self.client.clock.offset(ENVIRONMENT) - TOO_OLD_SECONDS
                clock = ServiceClock(wall=lambda: time.time() + offset)
                async with open_upstream_client(self.settings, clock=clock) as client:
                    reply = await client.send(*request, **options)
                # The first timestamp was refused, and the client has corrected it.
                if reply.attempts > 1:
                    reply.status, reply.body = 401, b""
            else:
                reply = await self.client.send(*request, **options)
        except (Unreachable, Unknown) as failure:
            raise RehearsalStopped(f"the sandbox does not answer: {failure}; {AGAIN}") from None
        return build_exchange(method, target, data, reply)

    def record(self, row: str, *, is_ok: bool | None, seen: str = "") -> None:
        """Records a result: a difference, or what was not tried, stays, with all that was seen."""
        was_ok, earlier = self.results.get(row, (True, ""))
        if was_ok or (was_ok is None and is_ok is False):
            self.results[row] = (is_ok, "as presumed" if is_ok else seen)
        elif not is_ok and seen not in earlier:
            self.results[row] = (was_ok, f"{earlier}; {seen}")

    def save_id(self, name: str, legacy_id: str, current_id: str) -> None:
        summary_path = self.settings.vocabulary.current.summary_path
        self.values |= {name: legacy_id, f"{name}_current": current_id}
        self.values[f"{name}_summary"] = summary_path.format(id=current_id)

    def list_calls(self, endpoint: str) -> list[Exchange]:
        """Lists the calls of an endpoint (as in ``mappings.current``), oldest first."""
        words = self.settings.vocabulary.current
        method, path = endpoint.split()
        paths = {"/balance": words.balance_path, "/batch/{id}/summary": words.summary_path}
        pattern = re.sub(r"\{\w+\}", "[^/]+", paths.get(path, f"/v1{path}"))
        calls = (call for call in self.client.exchanges if call.method == method)
        return [call for call in calls if re.fullmatch(pattern, call.path)]


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """Replaces the names in braces; raises KeyError if one is not saved."""
    return re.sub(r"\{([\w-]+)\}", lambda match: values[match[1]], text)


def normalize(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an answer of the service with batch and payments where a legacy answer has them."""
    return {**body, "batch": extract_batch(body), "payments": find_payments(body) or []}


def find_value(value: Any, place: str) -> Any:
    """Finds a value by its place (``payments.0.id``); None if there is none.

    ``*`` stands for all entries of a list: it finds their values, separated by spaces.
    """
    part, _, rest = place.partition(".")
    if part == "*" and isinstance(value, list):
        return " ".join(str(find_value(entry, rest)) for entry in value)
    if isinstance(value, list):
        value = {str(index): entry for index, entry in enumerate(value)}
    value = value.get(part) if isinstance(value, dict) else None
    return find_value(value, rest) if rest else value


def find_difference(status: int, answer: Any, expected: str) -> str:
    """Describes how an answer differs from the ``answer`` cell of a step; empty if it does not."""
    statuses, *conditions = expected.split(", ")
    is_ok = isinstance(answer, dict) and answer.get("ok", status < 400) is (status < 400)
    if not is_ok or not any(str(status).startswith(s.rstrip("x")) for s in statuses.split(" or ")):
        return "accepted" if is_ok and status < 400 else format_answer(status, answer)
    for place, _, rest in (text.partition(" ") for text in conditions):
        operator, _, value = rest.partition(" ")
        word, compare = COMPARISONS[operator]
        found = find_value(answer, place)
        if not compare(found, value):
            # A status word is shown, other values may be personal data.
            is_word = isinstance(found, str) and re.fullmatch("[a-z_-]+", found)
            return f"{place.replace('.*', '')} " + (f'is "{found}"' if is_word else word)
    return ""
