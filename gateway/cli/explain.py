"""`payout-gateway explain`: the current calls that one legacy request becomes."""

import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gateway.cli import CommandError, options, output
from gateway.config.settings import Settings
from gateway.docgen.curl import parse_curl, separate_own_and_curl_arguments
from gateway.docgen.explain import ExplainedCall, Explanation, explain_request, format_value

EXAMPLE_ID = re.compile(r"\b[ABPR]-EXAMPLE\d*\b")

# Python instead of `openssl dgst -hmac`, whose arguments, the secret key, every user can list.
PREAMBLE = """\
# The credentials are read from the shell's environment only; export both before you paste this.
( : "${{ACCESS_KEY:?export ACCESS_KEY first}}" "${{SECRET_KEY:?export SECRET_KEY first}}"
export SECRET_KEY
BASE_URL=${{BASE_URL:-{base_url}}}
sign() {{ python3 -c 'import hashlib, hmac, os, sys
print(hmac.new(os.environ["SECRET_KEY"].encode(), sys.stdin.buffer.read(), hashlib.sha256).hexdigest())'; }}"""


class _CurlCommand(click.Command):
    """Separates our options from curl's before click parses them: some have the same name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `--` below: click must not parse curl's options.
        ours, pasted = separate_own_and_curl_arguments(args)
        return super().parse_args(ctx, [*ours, "--", *pasted])


@click.command(cls=_CurlCommand)
@options.json_option
@click.option("--curl", "as_curl", is_flag=True, help="Print the calls as signed curl commands.")
@options.config_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def explain(*, words: tuple[str, ...], settings: Settings, as_json: bool, as_curl: bool) -> None:
    """Print the current calls that one legacy request becomes, field by field. Nothing is sent.

    Give the request as curl arguments, or paste a curl command line:

        payout-gateway explain -X POST /v1/recipients -d '{"type": "business", ...}'

    Headers are ignored; no API key is needed. With --curl, the output is a shell script that signs
    and sends the calls, up to the first with an id that a response returns; it reads ACCESS_KEY and
    SECRET_KEY from the environment of the shell.
    """
    if as_curl and as_json:
        raise click.UsageError("give either --curl or --json")
    request = parse_curl(words, _read_data_file)
    explanation = explain_request(settings, request.method, request.target, request.body)
    if as_curl:
        click.echo(_render_curl_script(settings, explanation))
    elif as_json:
        options.print_json(_build_explanation_json(explanation))
    else:
        _print_explanation(explanation)


def _read_data_file(path: str) -> bytes:
    """Reads the file of a curl ``@file`` argument; ``-`` is standard input."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None


def _print_explanation(explanation: Explanation) -> None:
    operation = explanation.operation
    click.echo(
        f"{operation.method} /v1{operation.path}: {operation.name} (legacy interface, section {operation.section}; {operation.exactness})"
    )
    click.echo(f"    {operation.exactness_reason}")
    if explanation.refusal:
        click.echo(f"\nThe gateway rejects this request with status {explanation.refusal.status}:")
        for problem in explanation.refusal.problems:
            click.echo(f"    {problem.code}: {problem.message}")
        click.echo(
            "\nCalls made before it is rejected:" if explanation.calls else "\nNo call is made."
        )
    for number, call in enumerate(explanation.calls, 1):
        inferred = ", optional endpoint" if call.inferred else ""
        click.echo(
            f"\n{number}. {call.method} {call.target}  (current interface, section {call.section}{inferred})"
        )
        if call.fields:
            rows = [
                [f"    {each.field}", format_value(each.value), each.sent_in, each.rule]
                for each in call.fields
            ]
            output.print_table(["    field", "value", "sent in", "rule"], rows)
        click.echo("    string to sign:")
        # It ends with a newline.
        click.echo(textwrap.indent(call.signed_text.removesuffix("\n"), 8 * " ", lambda _: True))
    if explanation.kept:
        click.echo("\nNot sent:")
        click.echo("\n".join(f"    {name}: {reason}" for name, reason in explanation.kept))
    if explanation.remembered:
        click.echo("\nStored by the gateway:")
        click.echo("\n".join(f"    {fact}" for fact in explanation.remembered))
    if explanation.refusal:
        click.echo(
            f"\nResponse: status {explanation.refusal.status}, {json.dumps(explanation.refusal.build_body())}"
        )
        return
    click.echo(f"\nResponse: status 200, with the fields {', '.join(explanation.answer or ())}")


def _render_curl_script(settings: Settings, explanation: Explanation) -> str:
    """Renders a script for a POSIX shell. It contains no secret and prints none."""
    if explanation.refusal and not explanation.calls:
        reasons = " ".join(problem.message for problem in explanation.refusal.problems)
        raise CommandError(f"the gateway rejects this request, and no call is made: {reasons}")
    # The sandbox first: a pasted write should not reach the live environment by default.
    environments = settings.environments
    environment = environments.sandbox or environments.live
    base_url = environment.base_url if environment else "https://sandbox.service.example"
    parts = [PREAMBLE.format(base_url=shlex.quote(base_url))]
    known_ids: set[str] = set()
    for number, call in enumerate(explanation.calls, 1):
        example_ids = {*EXAMPLE_ID.findall(call.target + call.signed_text)} - known_ids
        # A call with them would fail, or concern another object.
        if number > 1 and example_ids:
            parts.append(
                f"exit  # replace {', '.join(sorted(example_ids))} below by ids of the responses; then "
                "remove this line, and the calls above it, which have been made"
            )
        known_ids |= example_ids
        parts.append("\n".join(_iter_call_lines(settings, number, call)))
    # In a subshell, which a missing credential ends, also of a shell that it is pasted into.
    return "\n\n".join(parts) + "\n)"


def _iter_call_lines(settings: Settings, number: int, call: ExplainedCall) -> Iterator[str]:
    words = settings.vocabulary.current
    _, method, signed_target, body = call.signed_text.removesuffix("\n").split("\n", 3)
    yield f"# {number}. {method} {call.target}"
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


def _build_explanation_json(explanation: Explanation) -> dict[str, Any]:
    operation, refusal = explanation.operation, explanation.refusal
    calls = [asdict(call) for call in explanation.calls]
    for call in calls:
        for field in call["fields"]:
            field["sections"] = {"legacy": operation.section, "current": call["section"]}
    return {
        "operation": operation.name,
        "method": operation.method,
        "path": f"/v1{operation.path}",
        "section": operation.section,
        "exactness": operation.exactness,
        "because": operation.exactness_reason,
        "calls": calls,
        "not_sent": [{"field": name, "why": reason} for name, reason in explanation.kept],
        "remembered": explanation.remembered,
        "refusal": refusal and {"status": refusal.status, **refusal.build_body()},
        "answer": {"example": explanation.answer},
    }
