"""`payout-gateway explain`: the current calls that one legacy request becomes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from gateway.cli.errors import Mistake
from gateway.cli.options import load_command_settings
from gateway.cli.output import print_table
from gateway.docgen.curl import NoRequest, parse_curl, split_curl_options

OWN = ("--config",)


class _AsPasted(click.Command):
    """Separates our options from curl's before click parses them: some have the same name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `--` below: click must not parse curl's options.
        ours, pasted = split_curl_options(args, OWN)
        return super().parse_args(ctx, [*ours, "--", *pasted])


@click.command(cls=_AsPasted)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="For the vocabulary of your service. Default: gateway.toml if it exists.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def explain(*, words: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Print the current calls that one legacy request becomes, field by field. Nothing is sent.

    Give the request as curl arguments, or paste a curl command line:

        payout-gateway explain -X POST /v1/recipients -d '{"type": "business", ...}'

    Headers are ignored; no API key is needed.
    """
    from gateway.docgen.explain import NoOperation, explain_request
    from mappings.grammar import Invalid

    try:
        asked = parse_curl(words, _contents)
        told = explain_request(
            load_command_settings(config), asked.method, asked.target, asked.body
        )
    except (NoRequest, NoOperation) as error:
        raise Mistake(str(error)) from None
    except Invalid as invalid:
        raise Mistake(invalid.problems[0].message) from None
    click.echo(json.dumps(_as_json(told), indent=2, default=str)) if as_json else _show(told)


def _contents(named: str) -> bytes:
    """Reads the file of a curl ``@file`` argument; ``-`` is standard input."""
    if named == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(named).read_bytes()
    except OSError as error:
        raise Mistake(f"{named}: {error.strerror}") from None


def _show(told: Any) -> None:
    one = told.operation
    click.echo(
        f"{one.method} /v1{one.path}: {one.name} (legacy interface, section {one.section}; {one.exactness})"
    )
    click.echo(f"    {one.because}")
    if told.refusal:
        click.echo(f"\nThe gateway rejects this request with status {told.refusal.status}:")
        for problem in told.refusal.problems:
            click.echo(f"    {problem.code}: {problem.message}")
        click.echo("\nCalls made before it is rejected:" if told.calls else "\nNo call is made.")
    for number, call in enumerate(told.calls, 1):
        inferred = ", undocumented" if call.inferred else ""
        click.echo(
            f"\n{number}. {call.method} {call.target}  (current interface, section {call.section}{inferred})"
        )
        if call.fields:
            sections = f"legacy {one.section}, current {call.section}"
            rows = [
                [f"    {each.field}", _text(each.value), each.sent_in or "-", each.rule, sections]
                for each in call.fields
            ]
            print_table(["    field", "value", "sent in", "rule", "sections"], rows)
        click.echo("    string to sign:")
        for line in call.signed.split("\n")[:-1]:
            click.echo(f"        {line}")
    _list("Not sent", [f"{name}: {why}" for name, why in told.kept])
    _list("Stored by the gateway", told.remembered)
    if told.refusal:
        click.echo(f"\nAnswer: status {told.refusal.status}, {json.dumps(told.refusal.body())}")
    else:
        _show_answer(told)


def _show_answer(told: Any) -> None:
    click.echo(f"\nAnswer: status 200, with the fields {', '.join(told.answer)}")
    if told.answered:
        rows = [[f"    {name}", of, why] for name, of, why in told.answered]
        print_table(["    field", "from", "rule"], rows)


def _list(heading: str, lines: list[str]) -> None:
    if lines:
        click.echo(f"\n{heading}:")
    for line in lines:
        click.echo(f"    {line}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _as_json(told: Any) -> dict[str, Any]:
    one = told.operation
    return {
        "operation": one.name,
        "method": one.method,
        "path": f"/v1{one.path}",
        "section": one.section,
        "exactness": one.exactness,
        "because": one.because,
        "calls": [
            {
                "method": call.method,
                "target": call.target,
                "section": call.section,
                "inferred": call.inferred,
                "body": call.body,
                "fields": [
                    {
                        "field": f.field,
                        "value": f.value,
                        "sent_in": f.sent_in,
                        "rule": f.rule,
                        "sections": {"legacy": one.section, "current": call.section},
                    }
                    for f in call.fields
                ],
                "signed_text": call.signed,
            }
            for call in told.calls
        ],
        "not_sent": [{"field": name, "why": why} for name, why in told.kept],
        "remembered": told.remembered,
        "refusal": {"status": told.refusal.status, **told.refusal.body()} if told.refusal else None,
        "answer": {
            "example": told.answer,
            "fields": [{"field": name, "from": of, "rule": why} for name, of, why in told.answered],
        },
    }
