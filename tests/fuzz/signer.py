"""The signer: the signed bytes are those sent, and the simulator accepts them.

A signature is checked by the simulator, which shares no code with the gateway, over the very bytes
of the request; one byte changed, and it is refused.
"""

from __future__ import annotations

from yarl import URL

from gateway.auth.signing import Credentials, compute_signature, extract_signed_target
from gateway.config.sections import CurrentWords
from gateway.simulator.current_interface import CurrentInterface
from gateway.simulator.requests import Exchange
from gateway.simulator.validation import ApiError
from gateway.upstream.client import TARGET_PATTERN
from tests.fuzz.choices import Choices
from tests.simulator import Service, ServiceCredentials, ServiceOptions

CREDENTIALS = Credentials("ACCESS", "secret-\u00fc")
KEYS = [ServiceCredentials(CREDENTIALS.access_key, CREDENTIALS.secret_key)]
STAMP = 1_700_000_000
ORIGIN = "http://service.example/prefix"


def check(data: bytes) -> None:
    choices = Choices(data)
    method = choices.choose(("GET", "POST", "PATCH", "DELETE", "put"))
    target_form = choices.choose(("path", "path-and-query"))
    length = choices.choose_number(64)
    remaining_bytes = choices.take_rest()
    visible_characters = bytes(0x21 + byte % 94 for byte in remaining_bytes[:length])
    target, body = f"/v1/{visible_characters.decode()}", remaining_bytes[length:]
    if not TARGET_PATTERN.fullmatch(target):
        return  # never sent: ``Upstream.send`` refuses it
    sent_target = URL(f"{ORIGIN}{target.removesuffix('?')}", encoded=True).raw_path_qs
    if sent_target != "/prefix" + target.removesuffix("?"):
        return  # never sent by clients that normalise targets
    signed_target = extract_signed_target(target_form, target.removesuffix("?"))
    signature = compute_signature(CREDENTIALS.keyed, STAMP, method, signed_target, body)
    words = CurrentWords()
    headers = {
        "Authorization": f"{words.scheme} {CREDENTIALS.access_key}:{signature}",
        words.timestamp_header: str(STAMP),
    }
    on_the_wire = sent_target.removeprefix("/prefix")
    assert _is_accepted(headers, method, on_the_wire, body, target_form)
    changed_body = bytes([*body[:-1], body[-1] ^ 1]) if body else b"\0"
    assert not _is_accepted(headers, method, on_the_wire, changed_body, target_form)
    assert (
        compute_signature(Credentials("", "secret-u").keyed, STAMP, method, signed_target, body)
        != signature
    )


def _is_accepted(
    headers: dict[str, str], method: str, target: str, body: bytes, target_form: str
) -> bool:
    service = Service(
        credentials=KEYS,
        options=ServiceOptions(signed_target="path" if target_form == "path" else "path-and-query"),
        clock=lambda: STAMP,
    )
    try:
        CurrentInterface(service).accept_request(Exchange(method, target, headers, body))
    except ApiError:
        return False
    return True
