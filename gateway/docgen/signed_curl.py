"""Renders the calls of an explanation as a shell script that signs and sends them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.docgen.explain import ExplainedCall, Explanation

# Python instead of `openssl dgst -hmac`, whose arguments, the secret key, every user can list.
PREAMBLE = """\
# The credentials are read from the shell's environment only; export both before you paste this.
: "${{ACCESS_KEY:?export ACCESS_KEY first}}" "${{SECRET_KEY:?export SECRET_KEY first}}"
BASE_URL=${{BASE_URL:-{base_url}}}
sign() {{ python3 -c 'import hashlib, hmac, os, sys
print(hmac.new(os.environ["SECRET_KEY"].encode(), sys.stdin.buffer.read(), hashlib.sha256).hexdigest())'; }}"""


def render_curl_script(settings: Settings, explanation: Explanation) -> str:
    """Renders a script for a POSIX shell. It contains no secret and prints none."""
    # The sandbox first: a pasted write should not reach the live environment by default.
    environments = settings.environments
    environment = environments.sandbox or environments.live
    base_url = environment.base_url if environment else "https://sandbox.service.example"
    parts = [PREAMBLE.format(base_url=shlex.quote(base_url))]
    for number, call in enumerate(explanation.calls, 1):
        parts.append("\n".join(_iter_call_lines(settings, number, call)))
    return "\n\n".join(parts)


def _iter_call_lines(settings: Settings, number: int, call: ExplainedCall) -> Iterator[str]:
    words = settings.vocabulary.current
    _, method, signed_target, body = call.signed.removesuffix("\n").split("\n", 3)
    title = f"# {number}. {method} {call.target}"
    if number > 1:
        title += "; ids that an earlier answer returns are examples: replace them"
    yield title
    if body:
        yield f"BODY={shlex.quote(body)}"
    yield "STAMP=$(date +%s)"
    signed_body = '"$BODY"' if body else "''"
    arguments = f'"$STAMP" {method} {shlex.quote(signed_target)} {signed_body}'
    yield rf"SIGNATURE=$(printf '%s\n%s\n%s\n%s\n' {arguments} | sign)"
    options = [
        f'-H "Authorization: {words.scheme} $ACCESS_KEY:$SIGNATURE"',
        f'-H "{words.timestamp_header}: $STAMP"',
    ]
    if body:
        options += ["-H 'Content-Type: application/json'", '--data-binary "$BODY"']
    yield rf'curl -sS -w "\n" -X {method} "$BASE_URL"{shlex.quote(call.target)}' + " \\"
    yield "  " + " ".join(options)
