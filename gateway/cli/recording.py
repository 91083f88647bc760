"""`payout-gateway recording`: lists recordings of client traffic and how to replay them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gateway.cli.errors import CommandError
from gateway.cli.options import config_option, json_option, print_json
from gateway.cli.output import print_table
from gateway.config.settings import Settings


@click.command()
@json_option
@config_option
def recording(*, as_json: bool, settings: Settings) -> None:
    """List the recordings in `recording.directory`: files, times and operations.

    Recordings contain no keys and no personal data: identifying values are replaced by made-up
    ones. The gateway may keep writing while the files are read.
    """
    from gateway.migration.rotating_file import list_recordings

    if not settings.recording.directory:
        raise CommandError(
            "recording.directory is not set, so nothing is recorded; set it and restart the gateway"
        )
    directory = Path(settings.recording.directory)
    try:
        summaries = [_summarize_file(path) for path in list_recordings(directory)]
    except OSError as error:
        raise CommandError(f"{directory}: {error.strerror or 'cannot be read'}") from None
    if as_json:
        print_json({"directory": str(directory), "files": summaries})
        return
    if not summaries:
        click.echo(f"There are no recordings in {directory}.")
        return
    _print_summaries(summaries)


def _print_summaries(summaries: list[dict[str, Any]]) -> None:
    headers = ["file", "requests", "bytes", "from", "to"]
    rows = [
        [str(summary[name] or "-") for name in ("file", "requests", "bytes", "from", "to")]
        for summary in summaries
    ]
    print_table(headers, rows)
    operations: Counter[str] = Counter()
    for summary in summaries:
        operations.update(summary["operations"])
    click.echo()
    print_table(
        ["operation", "requests"], [[name, str(count)] for name, count in operations.most_common()]
    )
    click.echo(
        "\nTo replay the requests against two services (writes are sent only with --allow-writes, "
        "and really happen):\n"
    )
    click.echo("  export CONTROL_API_KEY=…  CANDIDATE_API_KEY=…")
    click.echo(f"  payout-gateway compare --control URL --candidate URL {summaries[-1]['file']}")


def _summarize_file(path: Path) -> dict[str, Any]:
    """Summarizes one file. A last line that is still being written is not counted."""
    operations: Counter[str] = Counter()
    times: list[str] = []
    # The last line may end within a character, which must not end the command.
    with path.open(encoding="utf-8", errors="replace") as lines:
        # The first line is the header of the recording.
        next(lines, None)
        for line in lines:
            try:
                entry = json.loads(line)
                operations[_identify_operation(entry["request"])] += 1
                times.append(entry["startedDateTime"])
            # The gateway may be writing this line.
            except (ValueError, KeyError, TypeError):
                continue
    return {
        "file": str(path),
        "requests": len(times),
        "bytes": path.stat().st_size,
        "from": min(times, default=None),
        "to": max(times, default=None),
        "operations": dict(operations.most_common()),
    }


def _identify_operation(request: dict[str, Any]) -> str:
    from gateway.compare.requests import identify_operation

    operation = identify_operation(request["method"], urlsplit(request["url"]).path)
    return operation.name or operation.title
