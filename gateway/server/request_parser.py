"""Parses a client's requests with httptools (llhttp), and refuses what it accepts but servers read
in different ways.
"""

import re
from collections import deque
from collections.abc import Callable

from httptools import (
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserUpgrade,
    HttpRequestParser,
)
from multidict import CIMultiDict

from gateway.http.request import HeaderFields, HttpRequest, RequestBody

MAX_LINE_BYTES = 8190
"""Longest target, and longest name or value of a header."""

MAX_HEADERS = 128

MAX_HEAD_BYTES = 64 * 1024
"""Bytes in which a head, the head of a chunk or the trailers must be complete."""

MAX_PARSED_BYTES = 8 * 1024
"""Bytes parsed at once: they may be hundreds of requests, or too many for a head."""

MAX_KNOWN_BYTES = 4 * 1024
"""Heads of at most these bytes are remembered; longer ones would fill the memory."""

_PLAIN_LINE = re.compile(
    rb"(GET|POST|PUT|PATCH|DELETE) (/[A-Za-z0-9._~/?&=%+-]{0,2000}) HTTP/1\.1(?=\r\n)"
)
"""The request line of most requests."""

_LENGTH_LINE = re.compile(rb"(?i)\r\nContent-Length: ?([0-9]{1,4})(?=\r\n|\Z)")

_SINGLE_HEADERS = ("Host", "Content-Type", "Transfer-Encoding", "User-Agent")
"""Headers that must not be repeated: servers differ in which one counts."""

_FRAMING_HEADERS = ("Transfer-Encoding", "Upgrade", "Expect")
"""Headers because of which a body is not simply what follows the head."""

_OTHER_TARGET = re.compile(r"[A-Z-]+ [A-Za-z][A-Za-z0-9+.-]*://[^/?#].*|OPTIONS \*|CONNECT .*")
"""Targets that are not paths: absolute ones, and those of a single method (RFC 9112, 3.2)."""

_UNKNOWN_METHOD = re.compile(rb"(?:\r\n)*[A-Z]{1,20} /\S* HTTP/1\.[01]\r\n")


class MalformedRequest(Exception):
    """A request that is not well-formed HTTP. Nothing after it can be read."""

    def __init__(self, error_type: str, *, has_unknown_method: bool = False) -> None:
        super().__init__(error_type)
        self.error_type = error_type
        self.has_unknown_method = has_unknown_method
        """Whether it is well-formed apart from a method that no server knows."""


class RequestParser:
    """Appends each request to ``requests`` when its head is complete; its body follows.

    ``on_body_read`` is called when a handler has read what had arrived of a body.
    """

    def __init__(
        self, requests: deque[HttpRequest | MalformedRequest], on_body_read: Callable[[], None]
    ) -> None:
        self._parser = HttpRequestParser(self)
        self._requests = requests
        self._on_body_read = on_body_read
        self._target = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._known_fields: dict[tuple[bytes, bool], HeaderFields] = {}
        """The fields of earlier requests on the connection, by what followed their request lines
        without the length of a body, and by whether there was one; one entry for each."""
        self._is_between_requests = True
        self._unfinished_bytes = 0
        self._is_head_repeated = False
        self.body: RequestBody | None = None
        """The body that arrives, if it is incomplete."""

    def feed(self, part: bytes | memoryview) -> None:
        """Parses at most ``MAX_PARSED_BYTES``; raises MalformedRequest."""
        line = _PLAIN_LINE.match(part) if self._is_between_requests else None
        if line is None:
            self._parse(part)
            return
        # Clients repeat the header fields of a connection's first request, so these need not be
        # parsed again. As those of HTTP/2's header compression, they stay until it is closed.
        head, end, body = bytes(part[line.end() :]).partition(b"\r\n\r\n")
        length = _LENGTH_LINE.search(head) if body and line[1] != b"GET" else None
        if length is not None:
            head = head[: length.start()] + head[length.end() :]
        key = head, length is not None
        if (fields := self._known_fields.get(key)) and end:
            request = HttpRequest(line[1].decode("ascii"), line[2].decode("ascii"), fields)
            if length is not None:
                request.fields = fields.copy_with_length(length[1].decode("ascii"))
                request.body = RequestBody(None, len(body), body)
            if len(body) == (request.fields.content_length if length is not None else 0):
                self._requests.append(request)
                return
        request_count = len(self._requests)
        self._parse(part)
        is_single = self._is_between_requests and len(self._requests) == request_count + 1
        if is_single and len(head) <= MAX_KNOWN_BYTES:
            self._remember_fields(key, self._requests[-1])

    def _remember_fields(
        self, key: tuple[bytes, bool], request: HttpRequest | MalformedRequest
    ) -> None:
        """Remembers the fields of a request that was complete, unless they change its framing."""
        _, has_body = key
        if isinstance(request, HttpRequest) and request.fields.has_body is has_body:
            if has_body and any(name in request.headers for name in _FRAMING_HEADERS):
                return
            for known in [known for known in self._known_fields if known[1] is has_body]:
                del self._known_fields[known]
            self._known_fields[key] = request.fields

    def _parse(self, part: bytes | memoryview) -> None:
        self._unfinished_bytes += len(part)
        request_count = len(self._requests)
        while part:
            try:
                self._parser.feed_data(part)
            except HttpParserUpgrade as upgrade:
                # An upgrade is not taken up: what follows is the next request.
                part = part[upgrade.args[0] :]
                if self.body is not None:
                    self._restart_at_body(self.body)
                continue
            except HttpParserInvalidMethodError as error:
                # If it is the first one in this part, its line begins the part.
                is_line = len(self._requests) == request_count and _UNKNOWN_METHOD.match(part)
                raise MalformedRequest(
                    type(error).__name__, has_unknown_method=bool(is_line)
                ) from None
            except HttpParserError as error:
                if isinstance(error.__context__, MalformedRequest):  # from a callback
                    raise error.__context__ from None
                raise MalformedRequest(type(error).__name__) from None
            break
        if self._unfinished_bytes > MAX_HEAD_BYTES:
            raise MalformedRequest("head_too_long")

    def close(self) -> None:
        """Drops what refers back to it, so that it is freed at once; nothing more may be fed."""
        del self._parser, self._on_body_read

    def _restart_at_body(self, body: RequestBody) -> None:
        """Replaces the parser by one that expects a body: httptools skips that of an upgrade."""
        length = body.content_length
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._parser, self._is_head_repeated = HttpRequestParser(self), True
        self._parser.feed_data(f"POST / HTTP/1.1\r\nHost:\r\n{framing}\r\n\r\n".encode())
        self._is_head_repeated = False

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._is_between_requests = False

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > MAX_LINE_BYTES:
            raise MalformedRequest("line_too_long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        # What follows are trailers, which are never headers.
        lines, self._lines, self._unfinished_bytes = self._lines, [], 0
        if self._is_head_repeated:
            return
        parser = self._parser
        version = parser.get_http_version()
        fields = _decode_fields(lines, version)
        method, target = parser.get_method().decode("ascii"), self._target.decode("ascii")
        if target[:1] != "/" and not _OTHER_TARGET.fullmatch(f"{method} {target}"):
            raise MalformedRequest("target")
        request = HttpRequest(
            method, target, fields, version, is_keep_alive=parser.should_keep_alive()
        )
        if fields.has_body:
            request.body = self.body = RequestBody(self._on_body_read, fields.content_length)
            # An unexpected body may be a smuggled request.
            if request.is_read_with_body:
                request.is_keep_alive = False
        self._requests.append(request)

    def on_body(self, data: bytes) -> None:
        self._unfinished_bytes = 0
        if self.body is not None:
            self.body.feed(data)

    def on_message_complete(self) -> None:
        # After the last request of a connection, the parser refuses what follows.
        self._is_between_requests = self._parser.should_keep_alive()
        self._unfinished_bytes = 0
        self._target = b""
        if self._lines:  # trailers
            _check_line_lengths(self._lines)
            self._lines = []
        if self.body is not None and not self._parser.should_upgrade():
            self.body.feed_end()
            self.body = None


def _decode_fields(lines: list[tuple[bytes, bytes]], version: str) -> HeaderFields:
    """Decodes and checks the header fields of a request; raises MalformedRequest."""
    if len(lines) > MAX_HEADERS:
        raise MalformedRequest("too_many_headers")
    _check_line_lengths(lines)
    # httptools leaves the white space after a value, which is no part of it.
    headers = CIMultiDict(
        [
            (name.decode("ascii"), value.rstrip(b" \t").decode("utf-8", "surrogateescape"))
            for name, value in lines
        ]
    )
    if (version != "1.1" or "Host" not in headers) and version != "1.0":
        raise MalformedRequest("version_or_host")
    # Iteration yields a repeated header once.
    has_repeated = len([*headers]) < len(headers)
    if has_repeated and any(len(headers.getall(name, ())) > 1 for name in _SINGLE_HEADERS):
        raise MalformedRequest("repeated_header")
    # HTTP/1.0 has no codings: some parsers ignore them.
    coding = headers.get("Transfer-Encoding")
    if coding is not None and (version == "1.0" or coding.lower() != "chunked"):
        raise MalformedRequest("transfer_coding")
    return HeaderFields(headers)


def _check_line_lengths(lines: list[tuple[bytes, bytes]]) -> None:
    if any(len(name) > MAX_LINE_BYTES or len(value) > MAX_LINE_BYTES for name, value in lines):
        raise MalformedRequest("line_too_long")
