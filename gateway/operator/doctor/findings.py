"""What was looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.operator.preflight import is_placeholder

State = Literal["ok", "warning", "skipped", "error"]
"""``skipped``: not tried."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``do`` says what to do about it, where it is not well."""

    environment: str
    looked_at: str
    state: State
    said: str
    do: str = ""


ALL = "all"
"""In the place of an environment, of what is of none."""

_NOT_BELIEVED = (
    "nobody who is believed signed the certificate there: name its authority in ca_file, or have "
    "the service send its whole chain (`openssl s_client -showcerts -connect {host}` shows it)"
)
_NO_TLS = "what listens there speaks no TLS: is {url} right with https?"
_NO_WAY = (
    "see that {url} is the service's address, that this machine may go out to it, and whether it "
    "needs upstream.proxy"
)
_HINTS = (
    (
        "mismatch, certificate",
        "the certificate there is of another name than {url} has: mend base_url",
    ),
    ("has expired", "the certificate there has expired, or this machine's clock is wrong"),
    ("CERTIFICATE_VERIFY_FAILED", _NOT_BELIEVED),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("record layer failure", _NO_TLS),
    (
        "the proxy refuses",
        "see upstream.proxy and its credentials, and that it lets {host} through",
    ),
    ("", _NO_WAY),
)


def advise_unreachable(why: str, url: str) -> str:
    """What to do where an address gave no answer, by the words of the failure."""
    if is_placeholder(url):
        return f"{url} is a placeholder: put your service's address in its place"
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    if ":" not in host:
        host += ":443" if scheme == "https" else ":80"
    hint = next(do for words, do in _HINTS if words in why)
    return hint.format(url=url, host=host)
