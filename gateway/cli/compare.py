"""`payout-gateway compare`: sends the same requests to two services and reports differences."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from gateway.cli.errors import CommandError
from gateway.cli.output import print_table, run_to_completion
from gateway.cli.progress import show_progress

if TYPE_CHECKING:
    from gateway.compare.endpoints import Side
    from gateway.compare.mask import Redactor
    from gateway.compare.report_schema import (
        DifferenceEntry,
        NotComparedEntry,
        OperationEntry,
        Report,
    )
    from gateway.compare.run import Run
    from gateway.compare.steps import Input

CONTROL_KEY = "CONTROL_API_KEY"
CANDIDATE_KEY = "CANDIDATE_API_KEY"

MAX_SKIPPED_SHOWN = 5
"""How many steps that were not compared are printed, for each reason."""

MAX_DIFFERENCES_SHOWN = 20
"""How many differences are printed; the report files contain all."""

STANDARD_OUTPUT = Path("-")

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=_FILE)
@click.option(
    "--control", required=True, metavar="URL", help="The reference service: the legacy one."
)
@click.option(
    "--candidate", required=True, metavar="URL", help="The service to compare with it: a gateway."
)
@click.option(
    "--allow-writes", is_flag=True, help="Also send writes, to both sides. They really happen."
)
@click.option(
    "--json",
    "json_file",
    type=_FILE,
    metavar="FILE",
    help="Write the report as JSON; - writes to standard output.",
)
@click.option(
    "--html",
    "html_file",
    type=_FILE,
    metavar="FILE",
    help="Write the report as a self-contained HTML page.",
)
@click.option(
    "--rules",
    "rules_files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Differences to ignore, with the reason for each (TOML).",
)
@click.option(
    "--measure-noise",
    is_flag=True,
    help="Send each request to control twice; what differs between the two answers is noise.",
)
@click.option(
    "--ids",
    type=click.Choice(["paired", "same"]),
    default="paired",
    show_default=True,
    help="paired: each side may use its own ids. same: ids must be equal.",
)
@click.option("--key-order", is_flag=True, help="Also compare the order of keys in objects.")
@click.option(
    "--show-values", is_flag=True, help="Show personal data in the reports instead of masking it."
)
@click.option(
    "--examples",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Examples to report for each difference.",
)
@click.option(
    "--side-by-side",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Steps to run concurrently.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=30,
    show_default=True,
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
    measure_noise: bool,
    ids: Literal["paired", "same"],
    key_order: bool,
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
    from gateway.compare.examples import ExampleBuilder
    from gateway.compare.findings import Findings
    from gateway.compare.id_map import IdMap
    from gateway.compare.mask import Redactor
    from gateway.compare.report import build_report, redact_api_keys
    from gateway.compare.run import Options, Run

    # From the environment: arguments are visible in process lists.
    keys = (_read_api_key(CONTROL_KEY), _read_api_key(CANDIDATE_KEY))
    redactor = Redactor(keys, show_values)
    with _convert_input_errors(redactor):
        run = Run(
            _load_inputs(inputs, rules_files),
            *_create_control_and_candidate((control, candidate), keys, timeout, side_by_side),
            findings=Findings(ExampleBuilder(redactor), examples),
            id_map=IdMap(has_separate_ids=ids == "paired"),
            options=Options(allow_writes, measure_noise, side_by_side, key_order),
            run_token=secrets.token_hex(4),
            own_values=(secrets.token_hex(6), secrets.token_hex(6)),
        )
    # Opened before anything is sent: a report that cannot be written would waste the run, and its
    # writes cannot be repeated.
    with (
        _open_report_writer(json_file, private=show_values) as as_json,
        _open_report_writer(html_file, private=show_values) as as_html,
    ):
        _run_comparison(run)
        # Once more for the whole report, because file names and titles are not masked one by one.
        report = redact_api_keys(build_report(run), redactor)
        as_json(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        if html_file:
            as_html(_render_page(report))
    _print_report_and_exit(report, is_json_on_stdout=json_file == STANDARD_OUTPUT)


def _print_report_and_exit(report: Report, *, is_json_on_stdout: bool) -> NoReturn:
    # stdout must contain nothing but the JSON document then.
    if not is_json_on_stdout and (report["operations"] or report["remarks"]):
        _print_report(report)
    # As an error: the reason belongs on stderr even if stdout has the JSON document.
    if report["result"] == "could not run":
        raise CommandError(report["sentence"])
    click.get_current_context().exit(report["exit_code"])


@contextmanager
def _convert_input_errors(redactor: Redactor) -> Iterator[None]:
    from gateway.compare.errors import InputError

    try:
        yield
    except InputError as unusable:
        raise CommandError(redactor.remove_api_keys(str(unusable))) from None


def _load_inputs(inputs: tuple[Path, ...], rules_files: tuple[Path, ...]) -> list[Input]:
    from gateway.compare.inputs import load_input, read_input_text
    from gateway.compare.rules import Rules, parse_rules
    from gateway.compare.run import check_has_steps

    rules = Rules()
    for path in rules_files:
        rules = rules.combine(parse_rules(read_input_text(path), str(path)))
    loaded = [load_input(path, rules) for path in inputs]
    check_has_steps(loaded)
    return loaded


def _create_control_and_candidate(
    urls: tuple[str, str], keys: tuple[str, str], seconds: float, concurrency: int
) -> tuple[Side, Side]:
    from gateway.compare.endpoints import Side

    return (
        Side("control", urls[0], keys[0], timeout_seconds=seconds, concurrency=concurrency),
        Side("candidate", urls[1], keys[1], timeout_seconds=seconds, concurrency=concurrency),
    )


def _render_page(report: Report) -> str:
    from gateway.compare.page import render_report_page

    return render_report_page(report)


def _read_api_key(variable: str) -> str:
    # A key that was read from a file often ends with a newline.
    key = os.environ.get(variable, "").strip()
    if not key:
        raise CommandError(f"{variable} is not set; set it to the API key of that side")
    # An HTTP header could not carry it.
    if not key.isascii() or not key.isprintable():
        raise CommandError(f"{variable}: not an API key; it must be printable ASCII")
    return key


def _run_comparison(run: Run) -> None:
    with show_progress("Comparing") as run.progress:
        run_to_completion(run.execute())


@contextmanager
def _open_report_writer(path: Path | None, *, private: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that writes a report; checks before the run that the file can be written.

    The old file is replaced only when the new one is complete. The temporary file exists only
    while it is written, so a run that is killed leaves none behind.
    """
    if path is None:
        yield lambda _text: None
    elif path == STANDARD_OUTPUT:
        yield lambda text: click.echo(_encode_utf8(text), nl=False)
    # A pipe or device cannot be replaced by a rename.
    elif path.exists() and not path.is_file():
        yield partial(_write_text, path)
    else:
        # A random name, not the process id: in a container, a killed run had the same process id.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        # A report with personal data is readable by its owner only.
        mode = 0o600 if private else 0o666
        try:
            # Created and removed again, to find out whether the folder can be written.
            _create_empty_file(draft, mode).unlink()
        except OSError as error:
            raise CommandError(
                f"{path} cannot be written: {error.strerror}; nothing was sent"
            ) from None
        yield partial(_replace_file, path, draft, mode)


def _create_empty_file(path: Path, mode: int) -> Path:
    # O_EXCL does not follow a link that another user has placed at this path.
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    return path


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(_encode_utf8(text))


def _encode_utf8(text: str) -> bytes:
    """Encodes as UTF-8. JSON text may contain a lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")


def _replace_file(path: Path, draft: Path, mode: int, text: str) -> None:
    try:
        _write_text(_create_empty_file(draft, mode), text)
        # Atomic: a reader sees the old report or the new one, never a part.
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _print_report(report: Report) -> None:
    for name in ("control", "candidate"):
        side = report[name]
        typical = "" if side["median_ms"] is None else f", median {side['median_ms']:g} ms"
        answers = f"{side['answers']:,} {'answer' if side['answers'] == 1 else 'answers'}"
        click.echo(f"{name:9}  {side['url']}  {answers}{typical}")
    if report["operations"]:
        click.echo()
        heads = ["operation", "answers", "equal", "different", "status of control/candidate"]
        print_table(
            heads, [_build_operation_summary_row(operation) for operation in report["operations"]]
        )
    _print_differences(report)
    _print_uncompared(report)
    if report["remarks"]:
        click.echo()
    for remark in report["remarks"]:
        click.echo(_escape_control_characters(f"- {remark}"))
    if report["result"] != "could not run":
        click.echo(f"\n{report['sentence']}")


def _print_differences(report: Report) -> None:
    differences = report["differences"]
    if differences:
        click.echo()
        heads = ["difference", "operation", "where", "answers", "control", "candidate"]
        print_table(
            heads,
            [
                _build_difference_row(difference)
                for difference in differences[:MAX_DIFFERENCES_SHOWN]
            ],
        )
    if len(differences) > MAX_DIFFERENCES_SHOWN:
        click.echo(
            f"… and {len(differences) - MAX_DIFFERENCES_SHOWN} more; --html and --json show all"
        )
    if report["noise"]:
        click.echo(f"\nNoise: control differs from itself in {len(report['noise'])} places.")


def _print_uncompared(report: Report) -> None:
    titles = {"not answered": "failed", "not sent": "not_sent", "skipped": "skipped"}
    for title, name in titles.items():
        steps: list[NotComparedEntry] = report[name]  # type: ignore[literal-required]
        if steps:
            click.echo(f"\n{title}:")
        for step in steps[:MAX_SKIPPED_SHOWN]:
            line = f"{step['input']} {step['step']}: {step['request']}: {step['why']}"
            click.echo(_escape_control_characters(f"  {line}"))
        if len(steps) > MAX_SKIPPED_SHOWN:
            click.echo(f"  … and {len(steps) - MAX_SKIPPED_SHOWN} more")


def _build_operation_summary_row(operation: OperationEntry) -> list[str]:
    statuses = ", ".join(f"{pair}: {count}" for pair, count in operation["statuses"].items())
    counts = (operation["compared"], operation["equal"], operation["different"])
    return [operation["request"], *map(str, counts), statuses]


def _build_difference_row(difference: DifferenceEntry) -> list[str]:
    example = difference["examples"][0]
    values = (example["control"]["text"], example["candidate"]["text"])
    cells = [
        _escape_control_characters(text if len(text) <= 40 else f"{text[:40]}…") for text in values
    ]
    return [
        difference["kind"],
        difference["request"],
        _escape_control_characters(difference["path"]),
        str(difference["answers"]),
        *cells,
    ]


def _escape_control_characters(text: str) -> str:
    """Replaces control characters: an answer may contain terminal escape sequences."""
    return "".join(character if character.isprintable() else "·" for character in text)
