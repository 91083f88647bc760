"""The rows of the tables, and helpers that build them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.running_gateway import KEY

CANARY = "canaryodd7f3a"
"""In most rows, at the malformed place; no response may repeat it."""

HOST = "Host: gateway\r\n"
KEYED = f"{HOST}X-API-Key: {KEY['api_key']}\r\n"
CHUNKED = f"{KEYED}Transfer-Encoding: chunked\r\n"
PATH = "/v1/recipients"
LIST = ("GET /v1/recipients",)
"""The upstream call of the valid request that most rows are made from."""


@dataclass(frozen=True, slots=True)
class RawCase:
    """``expected`` are the statuses of the answers, in order, and then what becomes of it all:

    ``goes on``: the next request on the connection is read as one, and answered
    ``stays``: the same, for one that is sent once these are answered
    ``closed``: the server closes the connection
    ``lingers``: what still comes is read and thrown away, for a while
    ``ended``: the client says that nothing more will come, and the server closes

    ``calls`` are the only ones that may reach the service.
    """

    data: bytes
    expected: str
    reason: str
    calls: tuple[str, ...] = ()

    @property
    def list_statuses(self) -> list[int]:
        return [int(word) for word in self.expected.split() if word.isdecimal()]

    @property
    def then(self) -> str:
        return self.expected.split()[-1]


def build_raw(text: str | bytes, expected: str, reason: str, *calls: str) -> RawCase:
    """Text is encoded as UTF-8."""
    return RawCase(text if isinstance(text, bytes) else text.encode(), expected, reason, calls)


def build_get(
    target: str = PATH, headers: str = KEYED, method: str = "GET", version: str = "HTTP/1.1"
) -> str:
    return f"{method} {target} {version}\r\n{headers}\r\n"


def build_post(headers: str, body: str = "", path: str = PATH) -> str:
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n{body}"


def build_sized_post(body: str | bytes, following_data: str = "", path: str = PATH) -> bytes:
    """A POST with a body and its correct length."""
    data = body if isinstance(body, bytes) else body.encode()
    return (
        build_post(f"{KEYED}{following_data}Content-Length: {len(data)}\r\n", path=path).encode()
        + data
    )


def build_chunked_post(body: str, following_data: str = "") -> str:
    return build_post(f"{CHUNKED}{following_data}", body)
