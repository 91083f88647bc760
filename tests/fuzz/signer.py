"""The signer: the signed bytes are those sent, and the simulator accepts them.

A signature is checked by the simulator, which shares no code with the gateway, over the very bytes
of the request; one byte changed, and it is refused.
"""

from __future__ import annotations

from yarl import URL

from gateway.auth.signing import (
    Credentials,
    build_signature_headers,
    build_string_to_sign,
    compute_signature,
    format_signed_target,
)
from gateway.config.settings import CurrentWords
from gateway.simulator.errors import ApiError
from gateway.simulator.options import ServiceCredentials, ServiceOptions, Vocabulary
from gateway.simulator.signature import authenticate_request, select_signed_target
from gateway.storage.keyed_hmac import KeyedHmac
from gateway.upstream.client import TARGET_PATTERN
from tests.fuzz.choices import Choices

CREDENTIALS = Credentials("ACCESS", "secret-\u00fc")
KEYS = {"ACCESS": ServiceCredentials(CREDENTIALS.access_key, CREDENTIALS.secret_key)}
STAMP = 1_700_000_000
ORIGIN = "http://service.example/prefix"


def check(data: bytes) -> None:
    choices = Choices(data)
    method = choices.choose(("GET", "POST", "PATCH", "DELETE", "put"))
    form = choices.choose(("path", "path-and-query"))
    length = choices.choose_number(64)
    rest = choices.take_rest()
    visible = bytes(0x21 + one % 94 for one in rest[:length])
    target, body = f"/v1/{visible.decode()}", rest[length:]
    if not TARGET_PATTERN.fullmatch(target):
        return  # never sent: ``Upstream.send`` refuses it
    sent = URL(f"{ORIGIN}{target.removesuffix('?')}", encoded=True).raw_path_qs
    if sent != "/prefix" + target.removesuffix("?"):
        return  # never sent: ``SingleSend.sign_and_verify_fence`` refuses what would be sent otherwise than it is signed
    signed = format_signed_target(form, target.removesuffix("?"))
    headers = build_signature_headers(
        CREDENTIALS, CurrentWords(), stamp=STAMP, method=method, target=signed, body=body
    )
    assert build_string_to_sign(STAMP, method, signed, body) == (
        b"%d\n%s\n%s\n%s\n" % (STAMP, method.upper().encode(), signed.encode(), body)
    )
    on_the_wire = sent.removeprefix("/prefix")
    assert _is_accepted(headers, method, on_the_wire, body, form)
    changed = bytes([*body[:-1], body[-1] ^ 1]) if body else b"\0"
    assert not _is_accepted(headers, method, on_the_wire, changed, form)
    assert (
        compute_signature(KeyedHmac(b"secret-u"), STAMP, method, signed, body)
        not in headers["Authorization"]
    )


def _is_accepted(headers: dict[str, str], method: str, target: str, body: bytes, form: str) -> bool:
    part = select_signed_target(
        target, ServiceOptions(signed_target="path" if form == "path" else "path-and-query")
    )
    try:
        authenticate_request(
            KEYS, Vocabulary(), headers, now=STAMP, method=method, target=part, body=body
        )
    except ApiError:
        return False
    return True
