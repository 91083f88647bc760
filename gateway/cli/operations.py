"""`payout-gateway operations`: lists the legacy operations and the calls that replace them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gateway.cli.options import (
    config_file_option,
    format_time,
    json_option,
    load_command_settings,
    print_json,
)
from gateway.cli.output import print_table, run_to_completion
from gateway.config.settings import Settings
from gateway.storage import ObjectStateStore, StoreUnavailable, open_store
from mappings import OPERATIONS, UNLISTED
from mappings.current import ENDPOINTS
from mappings.effects import Operation
from mappings.provenance import list_documented_current_calls

_NOT_TRIED = "not tried yet"


@click.command()
@json_option
@config_file_option
def operations(*, config: Path | None, as_json: bool) -> None:
    """List the legacy operations: the calls that replace each, how exactly, and why.

    With a configuration, also shows which optional endpoints, which the current document does not
    list, were found at each environment's service.
    """
    documented = [_build_operation_json(operation) for operation in OPERATIONS]
    undocumented = [_build_operation_json(operation) for operation in UNLISTED]
    settings = load_command_settings(config)
    endpoints_by_environment = (
        run_to_completion(_load_optional_endpoints_by_environment(settings))
        if settings.environments.map_configured_environments_by_name()
        else {}
    )
    if as_json:
        report = {
            "operations": documented,
            "unlisted": undocumented,
            "inferred": endpoints_by_environment,
        }
        print_json(report)
        return
    _print_operations("Legacy interface", documented)
    click.echo()
    _print_operations("Used by clients, but not listed by the legacy document", undocumented)
    for environment, endpoints in endpoints_by_environment.items():
        click.echo(
            f"\nOptional endpoints, not in the current document, of the {environment} service\n"
        )
        print_table(
            ["operation", "found", "when"],
            [
                [endpoint["operation"], endpoint["found"], endpoint["at"] or "-"]
                for endpoint in endpoints
            ],
        )


def _build_operation_json(operation: Operation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "method": operation.method,
        "path": f"/v1{re.sub('[<>]', '', operation.path)}",
        "section": operation.section,
        "exactness": operation.exactness,
        "becomes": list_documented_current_calls(operation),
        "because": operation.exactness_reason,
        # This key is older than the name in the code; scripts read it.
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


async def _load_optional_endpoints_by_environment(
    settings: Settings,
) -> dict[str, list[dict[str, Any]]]:
    """Loads what is known of optional endpoints, by environment; empty without a state."""
    try:
        async with open_store(settings.state, create=False) as store:
            facts_by_environment = {
                name: await ObjectStateStore(store).load_capabilities(name)
                for name in settings.environments.map_configured_environments_by_name()
            }
    # The rest of the report needs no state.
    except StoreUnavailable as unavailable:
        click.echo(
            f"Warning: endpoint discovery results are not available: {unavailable}", err=True
        )
        return {}
    return {name: _list_optional_endpoints(facts) for name, facts in facts_by_environment.items()}


def _list_optional_endpoints(facts: dict[str, tuple[Any, datetime]]) -> list[dict[str, Any]]:

    names = [f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if endpoint.is_optional]
    return [_build_endpoint_json(name, facts.get(f"inferred {name}")) for name in names]


def _build_endpoint_json(name: str, fact: tuple[Any, datetime] | None) -> dict[str, Any]:
    if fact is None:
        return {"operation": name, "found": _NOT_TRIED, "at": None}
    value, _learned_at = fact
    presence = "present" if value["present"] else "absent"
    return {
        "operation": name,
        "found": presence,
        "at": format_time(datetime.fromtimestamp(value["at"], UTC)),
    }
