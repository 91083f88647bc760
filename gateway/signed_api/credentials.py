"""Recognizes signed requests, and parses and verifies signatures (current interface, section 5)."""

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from multidict import CIMultiDictProxy, MultiMapping

from gateway.config.sections import CurrentWords
from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.observability import traces
from gateway.signed_api.replies import build_invalid_key_refusal
from gateway.upstream.clock import MAX_STAMP_AGE_SECONDS

_ACCESS_KEY_PATTERN = r"(?P<access_key>[!-9;-~]{1,512})"
_SIGNATURE_PATTERN = r"(?P<signature>[0-9a-f]{64})"
"""Lower-case, as documented. The service may refuse upper-case digits, so they are refused here."""

_STAMP_PATTERN = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class SignatureHeader:
    """The parsed signature headers. ``stamp`` is the unchanged text, which is signed."""

    access_key: str = field(repr=False)
    signature: str = field(repr=False)
    stamp: str

    def is_fresh(self, now: float) -> bool:
        """Whether the timestamp is close enough to ``now``, in seconds since 1970.

        It may be ahead as far as it may be old.
        """
        return abs(int(now) - int(self.stamp)) <= MAX_STAMP_AGE_SECONDS


def has_authorization_scheme(headers: MultiMapping[str], scheme: str) -> bool:
    """Whether an Authorization header has the scheme, with a valid signature or not."""
    header_values = headers.getall("Authorization", ())
    if not header_values:
        return False
    first_words = (value.split(None, 1)[:1] for value in header_values)
    return any(word and word[0].lower() == scheme.lower() for word in first_words)


def parse_signature_header(headers: CIMultiDictProxy[str], words: CurrentWords) -> SignatureHeader:
    """Parses the two signature headers; raises Refusal."""
    authorization = _require_single_header(headers, "Authorization")
    stamp = _require_single_header(headers, words.timestamp_header)
    pattern = rf"(?i:{re.escape(words.scheme)}) +{_ACCESS_KEY_PATTERN}:{_SIGNATURE_PATTERN}"
    match = re.fullmatch(pattern, authorization)
    if match is None:
        raise build_invalid_key_refusal(
            "Authorization is not the scheme, an access key, a colon and a signature"
        )
    if not _STAMP_PATTERN.fullmatch(stamp):
        raise build_invalid_key_refusal("the timestamp is not in whole seconds")
    return SignatureHeader(match["access_key"], match["signature"], stamp)


def _require_single_header(headers: CIMultiDictProxy[str], name: str) -> str:
    header_values = headers.getall(name, [])
    if len(header_values) != 1:
        # With repeated headers, the service might verify a different one.
        raise build_invalid_key_refusal(f"{name} occurs {len(header_values)} times")
    return header_values[0]


class SignatureVerifier:
    """Verifies a signature against several secrets while the body arrives.

    The document leaves open whether the signed path includes the query, so both forms are
    accepted. Takes the same time whichever secret matches, or if none does.
    """

    def __init__(
        self, secrets: Sequence[str], signature_header: SignatureHeader, method: str, target: str
    ) -> None:
        self._signature = signature_header.signature.encode()
        signed_targets = dict.fromkeys([target.partition("?")[0], target])
        heads = [
            f"{signature_header.stamp}\n{method.upper()}\n{signed_target}\n".encode()
            for signed_target in signed_targets
        ]
        self._digests = [
            [hmac.new(secret.encode(), head, "sha256") for head in heads] for secret in secrets
        ]

    def update(self, part: bytes) -> None:
        for digests in self._digests:
            for digest in digests:
                digest.update(part)

    def list_secret_matches(self) -> list[bool]:
        """Returns whether each secret made the signature; to be called after the last part."""
        self.update(b"\n")
        return [self._has_matching_digest(digests) for digests in self._digests]

    def _has_matching_digest(self, digests: Sequence[hmac.HMAC]) -> bool:
        # A list, not a generator: comparing all of them takes the same time for every result.
        hexdigests = [digest.hexdigest().encode() for digest in digests]
        return any([hmac.compare_digest(hexdigest, self._signature) for hexdigest in hexdigests])  # noqa: C419 - all of them


RequestHandler = Callable[[HttpRequest], Awaitable[HttpResponse]]


@dataclass(slots=True)
class InterfaceRouter:
    """Calls the handler of the interface that a request uses, which its credentials show.

    A request whose ``Authorization`` has the current interface's scheme is handled as a signed
    request, whether or not its signature is valid. Every other request is a legacy one. If a request
    has an ``X-API-Key`` too, the signature decides: it was made for this request, while a client may
    send its API key with every request. A CORS preflight has no credentials, but lists the headers
    that will follow.
    """

    _words: CurrentWords
    _legacy_handler: RequestHandler
    _signed_handler: RequestHandler

    def __call__(self, request: HttpRequest) -> Awaitable[HttpResponse]:
        # The legacy handler has had a request with these header fields.
        if request.fields.client is not None and request.method != "OPTIONS":
            is_signed = False
        else:
            is_signed = has_authorization_scheme(request.headers, self._words.scheme) or (
                request.method == "OPTIONS" and self._is_signed_request_preflight(request)
            )
        handler = self._signed_handler if is_signed else self._legacy_handler
        return handler(request) if traces.active_tracer is None else _trace(handler, request)

    def _is_signed_request_preflight(self, request: HttpRequest) -> bool:
        header_lines = request.headers.getall("Access-Control-Request-Headers", [])
        header_names = {name.strip().lower() for line in header_lines for name in line.split(",")}
        # A legacy client sends neither header.
        return not header_names.isdisjoint(("authorization", self._words.timestamp_header.lower()))


async def _trace(handler: RequestHandler, request: HttpRequest) -> HttpResponse:
    with traces.start_request_span(request.method, request.headers.get("traceparent", "")):
        return await handler(request)
