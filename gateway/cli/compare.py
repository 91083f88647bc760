"""`payout-gateway compare`: sends the same requests to two services and reports differences."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gateway.cli.errors import Mistake
from gateway.cli.output import print_table, run_to_completion
from gateway.cli.progress import show_progress

if TYPE_CHECKING:
    from gateway.compare.endpoints import Side
    from gateway.compare.mask import Redactor
    from gateway.compare.report_schema import Group, Operation, Report, Unasked
    from gateway.compare.run import Run
    from gateway.compare.steps import Input

CONTROL_KEY = "CONTROL_API_KEY"
CANDIDATE_KEY = "CANDIDATE_API_KEY"

FEW = 5
"""How many steps that were not compared are printed, for each reason."""

FIRST = 20
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
    from gateway.compare.examples import Viewer
    from gateway.compare.findings import Findings
    from gateway.compare.id_map import Pairing
    from gateway.compare.mask import Redactor
    from gateway.compare.report import build_report, redact_api_keys
    from gateway.compare.run import Options, Run

    # From the environment: arguments are visible in process lists.
    keys = (_key(CONTROL_KEY), _key(CANDIDATE_KEY))
    eye = Redactor(keys, show_values)
    with _mistakes(eye):
        run = Run(
            _read(inputs, rules_files),
            *_sides((control, candidate), keys, timeout, side_by_side),
            findings=Findings(Viewer(eye), examples),
            pairing=Pairing(apart=ids == "paired"),
            options=Options(allow_writes, measure_noise, side_by_side, key_order),
            token=secrets.token_hex(4),
            own=(secrets.token_hex(6), secrets.token_hex(6)),
        )
    with (
        _kept(json_file, private=show_values) as as_json,
        _kept(html_file, private=show_values) as as_html,
    ):
        _play(run)
        report = redact_api_keys(build_report(run), eye)
        as_json(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        if html_file:
            as_html(_page(report))
    # stdout must then contain nothing but the JSON document.
    if json_file != STANDARD_OUTPUT and (report["operations"] or report["remarks"]):
        _tell(report)
    if report["result"] == "could not run":
        raise Mistake(report["sentence"])
    click.get_current_context().exit(report["exit_code"])


@contextmanager
def _mistakes(eye: Redactor) -> Iterator[None]:
    from gateway.compare.errors import Unusable

    try:
        yield
    except Unusable as unusable:
        raise Mistake(eye.plain(str(unusable))) from None


def _read(inputs: tuple[Path, ...], rules_files: tuple[Path, ...]) -> list[Input]:
    from gateway.compare.inputs import load_input, read_input_text
    from gateway.compare.rules import Rules, parse_rules
    from gateway.compare.run import check_playable

    rules = Rules()
    for path in rules_files:
        rules = rules.and_then(parse_rules(read_input_text(path), str(path)))
    read = [load_input(path, rules) for path in inputs]
    check_playable(read)
    return read


def _sides(
    urls: tuple[str, str], keys: tuple[str, str], seconds: float, at_once: int
) -> tuple[Side, Side]:
    from gateway.compare.endpoints import Side

    return (
        Side("control", urls[0], keys[0], seconds=seconds, at_once=at_once),
        Side("candidate", urls[1], keys[1], seconds=seconds, at_once=at_once),
    )


def _page(report: Report) -> str:
    from gateway.compare.page import render_report_page

    return render_report_page(report)


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        raise Mistake(f"{variable} is not set; set it to the API key of that side")
    if not key.isascii() or not key.isprintable():
        raise Mistake(f"{variable}: not an API key; it must be printable ASCII")
    return key


def _play(run: Run) -> None:
    with show_progress("Comparing") as run.progress:
        run_to_completion(run.play())


@contextmanager
def _kept(path: Path | None, *, private: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that writes a report; checks before the run that the file can be written.

    The old file is replaced only when the new one is complete. The temporary file exists only
    while it is written, so a run that is killed leaves none behind.
    """
    if path is None:
        yield lambda _text: None
    elif path == STANDARD_OUTPUT:
        yield lambda text: click.echo(_bytes(text), nl=False)
    # A pipe or device cannot be replaced by a rename.
    elif path.exists() and not path.is_file():
        yield partial(_write, path)
    else:
        # A random name, not the process id: in a container, a killed run had the same process id.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        # A report with personal data is readable by its owner only.
        mode = 0o600 if private else 0o666
        try:
            _made(draft, mode).unlink()
        except OSError as error:
            raise Mistake(f"{path} cannot be written: {error.strerror}; nothing was sent") from None
        yield partial(_write_over, path, draft, mode)


def _made(draft: Path, mode: int) -> Path:
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    return draft


def _write(path: Path, text: str) -> None:
    path.write_bytes(_bytes(text))


def _bytes(text: str) -> bytes:
    """Encodes as UTF-8. JSON text may contain a lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace")


def _write_over(path: Path, draft: Path, mode: int, text: str) -> None:
    try:
        _write(_made(draft, mode), text)
        # Atomic: a reader sees the old report or the new one, never a part.
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _tell(report: Report) -> None:
    for name in ("control", "candidate"):
        side = report[name]
        typical = "" if side["median_ms"] is None else f", median {side['median_ms']:g} ms"
        answers = f"{side['answers']:,} {'answer' if side['answers'] == 1 else 'answers'}"
        click.echo(f"{name:9}  {side['url']}  {answers}{typical}")
    if report["operations"]:
        click.echo()
        heads = ["operation", "answers", "equal", "different", "status of control/candidate"]
        print_table(heads, [_operation(one) for one in report["operations"]])
    _tell_differences(report)
    _tell_what_was_not(report)
    if report["remarks"]:
        click.echo()
    for remark in report["remarks"]:
        click.echo(_printable(f"- {remark}"))
    if report["result"] != "could not run":
        click.echo(f"\n{report['sentence']}")


def _tell_differences(report: Report) -> None:
    found = report["differences"]
    if found:
        click.echo()
        heads = ["difference", "operation", "where", "answers", "control", "candidate"]
        print_table(heads, [_difference(one) for one in found[:FIRST]])
    if len(found) > FIRST:
        click.echo(f"… and {len(found) - FIRST} more; --html and --json show all")
    if report["noise"]:
        click.echo(f"\nNoise: control differs from itself in {len(report['noise'])} places.")


def _tell_what_was_not(report: Report) -> None:
    titles = {"not answered": "failed", "not sent": "not_sent", "skipped": "skipped"}
    for title, name in titles.items():
        those: list[Unasked] = report[name]  # type: ignore[literal-required]
        if those:
            click.echo(f"\n{title}:")
        for one in those[:FEW]:
            told = f"{one['input']} {one['step']}: {one['request']}: {one['why']}"
            click.echo(_printable(f"  {told}"))
        if len(those) > FEW:
            click.echo(f"  … and {len(those) - FEW} more")


def _operation(one: Operation) -> list[str]:
    statuses = ", ".join(f"{pair}: {count}" for pair, count in one["statuses"].items())
    counts = (one["compared"], one["equal"], one["different"])
    return [one["request"], *map(str, counts), statuses]


def _difference(one: Group) -> list[str]:
    example = one["examples"][0]
    values = (example["control"]["text"], example["candidate"]["text"])
    shown = [_printable(text if len(text) <= 40 else f"{text[:40]}…") for text in values]
    return [one["kind"], one["request"], _printable(one["path"]), str(one["answers"]), *shown]


def _printable(text: str) -> str:
    """Replaces control characters: an answer may contain terminal escape sequences."""
    return "".join(one if one.isprintable() else "·" for one in text)
