"""`payout-gateway compare`: sends the same requests to two services and reports differences."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from gateway.cli import CommandError
from gateway.cli.options import FILE
from gateway.cli.output import print_table, run_to_completion, show_progress
from gateway.compare.endpoints import Side
from gateway.compare.findings import Findings
from gateway.compare.id_map import IdMap
from gateway.compare.inputs import load_inputs, read_input_text
from gateway.compare.masking import Redactor
from gateway.compare.page import render_report_page
from gateway.compare.report import build_report, redact_api_keys
from gateway.compare.report_schema import DifferenceEntry, NotComparedEntry, OperationEntry, Report
from gateway.compare.requests import InputError
from gateway.compare.rules import Rules, parse_rules
from gateway.compare.run import Options, Run
from gateway.observability.plurals import pluralize

MAX_SKIPPED = 5
"""How many steps that were not compared are printed, for each reason."""

MAX_DIFFERENCES = 20
"""How many differences are printed; the report files contain all."""

STANDARD_OUTPUT = Path("-")

_url_option = partial(click.option, required=True, metavar="URL")
_file_option = partial(click.option, type=FILE, metavar="FILE")
_default_option = partial(click.option, show_default=True)
_switch = partial(click.option, is_flag=True)


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=FILE)
@_url_option("--control", help="The reference service: the legacy one.")
@_url_option("--candidate", help="The service to compare with it: a gateway.")
@_switch("--allow-writes", help="Also send writes, to both sides. They really happen.")
@_file_option("--json", "json_file", help="Write the report as JSON; - writes to standard output.")
@_file_option("--html", "html_file", help="Write the report as a self-contained HTML page.")
@_file_option(
    "--rules",
    "rules_files",
    multiple=True,
    help="Differences to ignore, with the reason for each (TOML).",
)
@_default_option(
    "--ids",
    type=click.Choice(["paired", "same"]),
    default="paired",
    help="paired: each side may use its own ids. same: ids must be equal.",
)
@_switch("--show-values", help="Show personal data in the reports instead of masking it.")
@_default_option(
    "--examples",
    type=click.IntRange(1, 100),
    default=5,
    help="Examples to report for each difference.",
)
@_default_option(
    "--side-by-side", type=click.IntRange(1, 64), default=4, help="Steps to run concurrently."
)
@_default_option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=30,
    help="Seconds to wait for an answer.",
)
def compare(
    *,
    inputs: tuple[Path, ...],
    control: str,
    candidate: str,
    allow_writes: bool,
    json_file: Path | None,
    html_file: Path | None,
    rules_files: tuple[Path, ...],
    ids: Literal["paired", "same"],
    show_values: bool,
    examples: int,
    side_by_side: int,
    timeout: float,
) -> None:
    """Send the same requests to two services and report how the answers differ.

    INPUT is a scenario (TOML), recorded traffic (HAR 1.2) or a list of reads. Set the API keys in
    the environment variables CONTROL_API_KEY and CANDIDATE_API_KEY. Exit code 0: the answers are
    equal. 1: they differ. 2: the comparison could not be made.

    `compare report` shows the differences that a running gateway found; see its own --help.
    """
    # From the environment: arguments are visible in process lists.
    keys = (_read_api_key("CONTROL_API_KEY"), _read_api_key("CANDIDATE_API_KEY"))
    redactor = Redactor(keys, show_values)
    limits: Any = {"timeout_seconds": timeout, "concurrency": side_by_side}
    try:
        run = Run(
            load_inputs(inputs, load_rules(rules_files)),
            Side("control", control, keys[0], **limits),
            Side("candidate", candidate, keys[1], **limits),
            findings=Findings(redactor, examples),
            id_map=IdMap(has_separate_ids=ids == "paired"),
            options=Options(allow_writes, side_by_side),
            run_token=secrets.token_hex(4),
            own_values=(secrets.token_hex(6), secrets.token_hex(6)),
        )
    except InputError as unusable:
        raise CommandError(redactor.remove_api_keys(str(unusable))) from None
    report = _run_and_write_reports(run, json_file, html_file)
    # stdout must contain nothing but the JSON document then.
    if json_file != STANDARD_OUTPUT and (report["operations"] or report["remarks"]):
        _print_report(report)
    # As an error: the reason belongs on stderr even if stdout has the JSON document.
    if report["result"] == "could not run":
        raise CommandError(report["sentence"])
    click.get_current_context().exit(report["exit_code"])


def _run_and_write_reports(run: Run, json_file: Path | None, html_file: Path | None) -> Report:

    redactor = run.findings.redactor
    # Opened before anything is sent: a report that cannot be written would waste the run, and its
    # writes cannot be repeated.
    with (
        _open_report_writer(json_file, private=redactor.is_unmasked) as write_json,
        _open_report_writer(html_file, private=redactor.is_unmasked) as write_html,
    ):
        with show_progress("Comparing") as run.progress:
            run_to_completion(run.execute())
        # Once more for the whole report, because file names and titles are not masked one by one.
        report = redact_api_keys(build_report(run), redactor)
        write_json(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        if html_file:
            write_html(render_report_page(report))
    return report


def load_rules(files: tuple[Path, ...]) -> Rules:
    """Loads the built-in rules and those of files; raises InputError."""
    rules = Rules()
    for path in files:
        rules = rules.combine(parse_rules(read_input_text(path), str(path)))
    return rules


def _read_api_key(variable: str) -> str:
    # A key that was read from a file often ends with a newline.
    key = os.environ.get(variable, "").strip()
    if not key:
        raise CommandError(f"{variable} is not set; set it to the API key of that side")
    # An HTTP header could not carry it.
    if not key.isascii() or not key.isprintable():
        raise CommandError(f"{variable}: not an API key; it must be printable ASCII")
    return key


@contextmanager
def _open_report_writer(path: Path | None, *, private: bool) -> Iterator[Callable[[str], None]]:
    """Opens a report file before the run, and yields a function that replaces its content."""
    if path is None or path == STANDARD_OUTPUT:
        yield lambda text: click.echo(_encode_utf8(text), nl=False) if path else None
        return
    # A report with personal data is readable by its owner only.
    mode = 0o600 if private else 0o666
    try:
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, mode), "wb")
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}; nothing was sent"
        ) from None

    def replace_report(text: str) -> None:
        if path.is_file():  # and no pipe or device
            file.truncate(0)
            if private:
                os.fchmod(file.fileno(), mode)
        file.write(_encode_utf8(text))

    with file:
        yield replace_report


def _encode_utf8(text: str) -> bytes:
    """Encodes as UTF-8. JSON text may contain a lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")


def _print_report(report: Report) -> None:
    for name in ("control", "candidate"):
        side = report[name]
        typical = "" if side["median_ms"] is None else f", median {side['median_ms']:g} ms"
        click.echo(f"{name:9}  {side['url']}  {pluralize(side['answers'], 'answer')}{typical}")
    if report["operations"]:
        heads = ["operation", "answers", "equal", "different", "status of control/candidate"]
        click.echo()
        print_table(heads, [_build_operation_row(row) for row in report["operations"]])
    if differences := report["differences"]:
        heads = ["difference", "operation", "where", "answers", "control", "candidate"]
        click.echo()
        print_table(heads, [_build_difference_row(row) for row in differences[:MAX_DIFFERENCES]])
        if len(differences) > MAX_DIFFERENCES:
            more = len(differences) - MAX_DIFFERENCES
            click.echo(f"… and {more} more; --html and --json show all")
    _print_uncompared("not answered", report["failed"])
    _print_uncompared("not sent", report["not_sent"])
    _print_uncompared("skipped", report["skipped"])
    if report["remarks"]:
        click.echo()
    for remark in report["remarks"]:
        click.echo(_escape_control_characters(f"- {remark}"))
    if report["result"] != "could not run":
        click.echo(f"\n{report['sentence']}")


def _print_uncompared(title: str, steps: list[NotComparedEntry]) -> None:
    if steps:
        click.echo(f"\n{title}:")
    for step in steps[:MAX_SKIPPED]:
        line = f"{step['input']} {step['step']}: {step['request']}: {step['why']}"
        click.echo(_escape_control_characters(f"  {line}"))
    if len(steps) > MAX_SKIPPED:
        click.echo(f"  … and {len(steps) - MAX_SKIPPED} more")


def _build_operation_row(operation: OperationEntry) -> list[str]:
    statuses = ", ".join(f"{pair}: {count}" for pair, count in operation["statuses"].items())
    counts = (operation["compared"], operation["equal"], operation["different"])
    return [operation["request"], *map(str, counts), statuses]


def _build_difference_row(difference: DifferenceEntry) -> list[str]:
    example = difference["examples"][0]
    values = (example["control"]["text"], example["candidate"]["text"])
    cells = [
        difference["kind"],
        difference["request"],
        difference["path"],
        str(difference["answers"]),
        *(text if len(text) <= 40 else f"{text[:40]}…" for text in values),
    ]
    return [*map(_escape_control_characters, cells)]


def _escape_control_characters(text: str) -> str:
    """Replaces control characters: an answer may contain terminal escape sequences."""
    return "".join(character if character.isprintable() else "·" for character in text)
