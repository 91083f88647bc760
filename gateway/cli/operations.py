"""`payout-gateway operations`: the legacy interface, and what each operation becomes."""

import re
from typing import Any

import click

from gateway.cli import options
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation
from mappings.provenance import list_documented_current_calls


@click.command()
@options.json_option
def operations(*, as_json: bool) -> None:
    """List the legacy operations: the calls that replace each, how exactly, and why.

    `doctor --verbose` shows which optional endpoints, which the current document does not list, a
    service has.
    """
    documented = [_build_operation_json(operation) for operation in OPERATIONS]
    undocumented = [_build_operation_json(operation) for operation in UNLISTED]
    if as_json:
        options.print_json({"operations": documented, "unlisted": undocumented})
        return
    _print_operations("Legacy interface", documented)
    click.echo()
    _print_operations("Used by clients, but not listed by the legacy document", undocumented)


def _build_operation_json(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "method": operation.method,
        "path": f"/v1{re.sub('[<>]', '', operation.path)}",
        "section": operation.section,
        "exactness": operation.exactness,
        "becomes": list_documented_current_calls(operation),
        "because": operation.exactness_reason,
        "rests_on": operation.assumption or None,
    }


def _print_operations(heading: str, rows: list[dict[str, Any]]) -> None:
    click.echo(f"{heading}\n")
    for row in rows:
        details = f"{row['name']}, section {row['section']}, {row['exactness']}"
        click.echo(f"{row['method']} {row['path']}  ({details})")
        width = max(len(call["call"]) for call in row["becomes"])
        for call in row["becomes"]:
            click.echo(f"    {call['call']:{width}}  {call['note']}".rstrip())
        click.echo(f"    because: {row['because']}")
        if row["rests_on"]:
            click.echo(f"    assumes: {row['rests_on']}")
