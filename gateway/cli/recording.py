"""`payout-gateway recording`: lists recordings of client traffic and how to replay them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import print_table
from gateway.config.settings import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def recording(*, as_json: bool, settings: Settings) -> None:
    """List the recordings in `recording.directory`: files, times and operations.

    Recordings contain no keys and no personal data: identifying values are replaced by made-up
    ones. The gateway may keep writing while the files are read.
    """
    from gateway.migration.rotating_file import list_recordings

    if not settings.recording.directory:
        raise Mistake(
            "recording.directory is not set, so nothing is recorded; set it and restart the gateway"
        )
    directory = Path(settings.recording.directory)
    try:
        told = [_told(path) for path in list_recordings(directory)]
    except OSError as error:
        raise Mistake(f"{directory}: {error.strerror or 'cannot be read'}") from None
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "files": told}, indent=2))
        return
    if not told:
        click.echo(f"There are no recordings in {directory}.")
        return
    _show(told)


def _show(told: list[dict[str, Any]]) -> None:
    heads = ["file", "requests", "bytes", "from", "to"]
    rows = [
        [str(one[name] or "-") for name in ("file", "requests", "bytes", "from", "to")]
        for one in told
    ]
    print_table(heads, rows)
    operations: Counter[str] = Counter()
    for one in told:
        operations.update(one["operations"])
    click.echo()
    print_table(["operation", "requests"], [[name, str(n)] for name, n in operations.most_common()])
    click.echo(
        "\nTo replay the requests against two services (writes are sent only with "
        "--allow-writes, and "
        "really happen):\n"
    )
    click.echo("  export CONTROL_API_KEY=…  CANDIDATE_API_KEY=…")
    click.echo(f"  payout-gateway compare --control URL --candidate URL {told[-1]['file']}")


def _told(path: Path) -> dict[str, Any]:
    """Summarizes one file. A last line that is still being written is not counted."""
    operations: Counter[str] = Counter()
    moments: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        next(lines, None)
        for line in lines:
            try:
                entry = json.loads(line)
                operations[_operation(entry["request"])] += 1
                moments.append(entry["startedDateTime"])
            # The gateway may be writing this line.
            except (ValueError, KeyError, TypeError):
                continue
    return {
        "file": str(path),
        "requests": len(moments),
        "bytes": path.stat().st_size,
        "from": min(moments, default=None),
        "to": max(moments, default=None),
        "operations": dict(operations.most_common()),
    }


def _operation(request: dict[str, Any]) -> str:
    from gateway.compare.operations import identify_operation

    found = identify_operation(request["method"], urlsplit(request["url"]).path)
    return found.name or found.title
