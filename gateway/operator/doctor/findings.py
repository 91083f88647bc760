"""The result of one doctor check, and advice for unreachable addresses."""

from dataclasses import dataclass
from typing import Literal, get_args

from yarl import URL

from gateway.operator.preflight import is_placeholder_url

State = Literal["error", "warning", "skipped", "ok"]
"""``warning``: may be intended, but keeps clients from something; ``skipped``: not tried."""

STATES = get_args(State)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``advice`` is empty if there is nothing to do.

    ``consequence``: of an error, for clients.
    """

    environment: str
    check_name: str
    state: State
    result: str
    advice: str = ""
    consequence: str = "Clients would be refused."


ALL_ENVIRONMENTS = "all"
"""The environment of checks that concern no single environment."""

_UNTRUSTED_CERTIFICATE = (
    "the server's certificate is not signed by a trusted authority: set ca_file to its authority, "
    "or have the server send its full chain (`openssl s_client -showcerts -connect {host}` shows "
    "it)"
)
_INCOMPLETE_CERTIFICATE = (
    "from version 3.13 on, Python accepts only certificates with the extensions of RFC 5280: have the "
    "server's, and that of its authority, issued again with them (an authority needs keyUsage), or "
    "run the gateway with Python 3.12"
)
_NO_TLS = "the server at this address does not use TLS: check whether {url} should be http"
_UNREACHABLE = (
    "check that {url} is the service's address, that the firewall allows this machine to connect "
    "to it, and whether it needs upstream.proxy"
)
_HANGS = (
    "the server at {url} accepts connections and does not answer: wait until it recovers; if it never "
    "answered, check base_url"
)
_HINTS = (
    (
        "mismatch, certificate",
        "the server's certificate is for another host name than {url}: correct base_url",
    ),
    (
        "has expired",
        "renew the server's certificate, which has expired, or correct this machine's clock",
    ),
    ("key usage", _INCOMPLETE_CERTIFICATE),
    ("Key Identifier", _INCOMPLETE_CERTIFICATE),
    ("CERTIFICATE_VERIFY_FAILED", _UNTRUSTED_CERTIFICATE),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("record layer failure", _NO_TLS),
    (
        "the proxy refuses",
        "check upstream.proxy and its credentials, and that the proxy allows {host}",
    ),
    (
        "to the proxy",
        "check upstream.proxy, that the proxy runs, and that this machine may connect to it",
    ),
    ("no answer within", _HANGS),
    ("", _UNREACHABLE),
)


def advise_on_unreachable_address(failure: str, url: str) -> str:
    """Returns advice for an address that did not answer, chosen by the text of the failure."""
    if is_placeholder_url(url):
        return f"{url} is a placeholder: replace it with the address of your service"
    hint = next(advice for pattern, advice in _HINTS if pattern in failure)
    address = URL(url)
    # openssl s_client needs a port.
    return hint.format(url=url, host=f"{address.host_subcomponent}:{address.port}")
