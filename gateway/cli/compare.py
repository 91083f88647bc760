"""`payout-gateway compare`: compares two services, and `compare report` the results of shadow traffic."""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from gateway.cli import CommandError, options, output
from gateway.compare.endpoints import Side
from gateway.compare.findings import Entry, Findings
from gateway.compare.id_map import IdMap
from gateway.compare.inputs import load_inputs, read_input_text
from gateway.compare.masking import Redactor
from gateway.compare.report import Report, build_report, redact_api_keys, render_report_page
from gateway.compare.requests import InputError
from gateway.compare.rules import BUILT_IN, Rules, parse_rules
from gateway.compare.run import Run
from gateway.config.settings import Settings
from gateway.observability.plurals import format_time, pluralize
from gateway.operator.readiness import VALUE_FREE_RULE_KINDS, KeyReadiness, load_cutover_readiness
from gateway.storage import Store
from gateway.storage.difference_rows import (
    TALLY_COUNTS,
    delete_comparison_tallies_of_key,
    load_comparison_tallies_by_key,
)

MAX_SKIPPED = 5
"""How many steps that were not compared are printed, for each reason."""

MAX_DIFFERENCES = 20
"""How many differences are printed; the report files contain all."""

STANDARD_OUTPUT = Path("-")

_url_option = partial(click.option, required=True, metavar="URL")
_file_option = partial(click.option, type=options.FILE, metavar="FILE")
_switch = partial(click.option, is_flag=True)


class _CompareGroup(options.FullHelpGroup):
    """Runs the comparison if the first argument is not a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["report"] else ["run", *args])


class _GroupContext(click.Context):
    """Leaves `run` out of the command path in messages, because users do not type it."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else ""


@click.group(cls=_CompareGroup)
def compare() -> None:
    """Send the same requests to two services and report differences."""


@compare.command("run")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=options.FILE)
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
@click.option(
    "--ids",
    type=click.Choice(["paired", "same"]),
    default="paired",
    show_default=True,
    help="paired: each side may use its own ids. same: ids must be equal.",
)
@_switch("--show-values", help="Show personal data in the reports instead of masking it.")
def run_comparison(
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
    rules = _load_rules(rules_files, redactor)
    try:
        run = Run(
            load_inputs(inputs, rules),
            Side("control", control, keys[0]),
            Side("candidate", candidate, keys[1]),
            findings=Findings(redactor),
            id_map=IdMap(has_separate_ids=ids == "paired"),
            allow_writes=allow_writes,
            run_token=secrets.token_hex(4),
            own_values=(secrets.token_hex(6), secrets.token_hex(6)),
        )
    except InputError as unusable:
        raise CommandError(redactor.remove_api_keys(str(unusable))) from None
    if (run.control.url, keys[0]) == (run.candidate.url, keys[1]):
        raise CommandError("the same address and API key on both sides: they would always be equal")
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
        with output.show_progress("Comparing") as run.progress:
            output.run_to_completion(run.execute())
        # Once more for the whole report, because file names and titles are not masked one by one.
        report = redact_api_keys(build_report(run), redactor)
        write_json(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        if html_file:
            write_html(render_report_page(report))
    return report


def _load_rules(files: tuple[Path, ...], redactor: Redactor) -> Rules:
    """Loads the built-in rules and those of files; raises CommandError."""
    rules = Rules()
    try:
        for path in files:
            rules = rules.combine(parse_rules(read_input_text(path), str(path)))
    except InputError as error:
        raise CommandError(redactor.remove_api_keys(str(error))) from None
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
        click.echo(f"{name:9}  {side['url']}  {pluralize(side['answers'], 'response')}{typical}")
    if report["operations"]:
        heads = ["operation", "responses", "equal", "different", "status of control/candidate"]
        click.echo()
        output.print_table(heads, map(_build_operation_row, report["operations"]))
    if differences := report["differences"]:
        heads = ["difference", "operation", "where", "responses", "control", "candidate"]
        click.echo()
        output.print_table(heads, map(_build_difference_row, differences[:MAX_DIFFERENCES]))
        if len(differences) > MAX_DIFFERENCES:
            more = len(differences) - MAX_DIFFERENCES
            click.echo(f"… and {more} more; --html and --json show all")
    _print_uncompared("not answered", report["failed"])
    _print_uncompared("not sent", report["not_sent"])
    _print_uncompared("skipped", report["skipped"])
    if report["remarks"]:
        click.echo()
    for remark in report["remarks"]:
        click.echo(output.escape_control_characters(f"- {remark}"))
    if report["result"] != "could not run":
        click.echo(f"\n{report['sentence']}")


def _print_uncompared(title: str, steps: list[Entry]) -> None:
    if steps:
        click.echo(f"\n{title}:")
    for step in steps[:MAX_SKIPPED]:
        line = f"{step['input']} {step['step']}: {step['request']}: {step['why']}"
        click.echo(output.escape_control_characters(f"  {line}"))
    if len(steps) > MAX_SKIPPED:
        click.echo(f"  … and {len(steps) - MAX_SKIPPED} more")


def _build_operation_row(operation: Entry) -> list[object]:
    statuses = ", ".join(f"{pair}: {count}" for pair, count in operation["statuses"].items())
    return [*(operation[name] for name in ("request", "compared", "equal", "different")), statuses]


def _build_difference_row(difference: Entry) -> list[object]:
    example = difference["examples"][0]
    texts = (example["control"]["text"], example["candidate"]["text"])
    shown = [text if len(text) <= 40 else f"{text[:40]}…" for text in texts]
    return [*(difference[name] for name in ("kind", "request", "path", "answers")), *shown]


# The group stands in for its default subcommand: users type `compare`, not `compare run`.
run_comparison.context_class = _GroupContext

# Results of shadow traffic


@compare.command("report")
@click.option("--key", "name", metavar="NAME", help="Only this key, by its name.")
@_file_option(
    "--rules",
    "rules_files",
    multiple=True,
    help="Differences to ignore, with the reason for each (TOML). Only `ignore` and "
    "`present` rules apply, because only masked values are stored.",
)
@click.option("--forget", is_flag=True, help="Reset the statistics of --key.")
@options.yes_option
@options.json_option
@options.config_option
def show_shadow_comparison_report(
    *,
    name: str | None,
    rules_files: tuple[Path, ...],
    forget: bool,
    yes: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show the differences that a running gateway found for keys in mode `compare`.

    For each key: how many answers were compared, where they differ, whether a rule explains the
    difference, and which reads were not compared. Exit code 0: every compared key is ready for
    cutover. 1: a key is not ready. 2: the report could not be made.
    """
    if forget:
        _reset_statistics(settings, name, yes=yes, as_json=as_json)
        return
    # Of the files only: the built-in rules were applied when the answers were compared.
    rules = [rule for rule in _load_rules(rules_files, Redactor()).rules if rule.origin != BUILT_IN]
    rules = [rule for rule in rules if rule.kind in VALUE_FREE_RULE_KINDS]
    readiness = output.run_with_store(
        settings, lambda store: load_cutover_readiness(store, name, rules)
    )
    if name and not readiness:
        raise CommandError(_NOTHING_COMPARED)
    if as_json:
        options.print_json({"keys": [*map(_build_key_readiness_json, readiness)]})
    else:
        for each in readiness:
            _print_key_readiness(each)
        if not readiness:
            click.echo(
                "Nothing was compared yet. To compare, run `payout-gateway modes set --key NAME compare`."
            )
    click.get_current_context().exit(0 if all(each.is_ready for each in readiness) else 1)


_NOTHING_COMPARED = "nothing was compared for a key of this name; `payout-gateway modes list` shows the keys in mode compare"


def _reset_statistics(settings: Settings, name: str | None, *, yes: bool, as_json: bool) -> None:
    if name is None:
        raise click.UsageError("--forget requires --key NAME")
    options.require_confirmation(f"Reset the comparison statistics of key {name}?", yes=yes)

    async def delete_tallies(store: Store) -> None:
        tallies = await load_comparison_tallies_by_key(store)
        # A key of the same name may exist in both environments.
        tenants = {tally_key.tenant for tally_key in tallies if tally_key.key == name}
        if not tenants:
            raise CommandError(_NOTHING_COMPARED)
        for tenant in tenants:
            await delete_comparison_tallies_of_key(store, tenant, name)

    output.run_with_store(settings, delete_tallies)
    if as_json:
        options.print_json({"keys": []})
    else:
        click.echo(
            f"Reset the comparison statistics of key {name}; new requests are counted from zero."
        )


# Output


def _build_key_readiness_json(readiness: KeyReadiness) -> dict[str, Any]:
    return {
        **readiness.owner._asdict(),
        "key": readiness.key,
        "ready": readiness.is_ready,
        "compared": readiness.answer_count,
        "unexplained": readiness.open_difference_count,
        "never_seen": readiness.never_seen,
        "used_and_never_compared": readiness.missing_reads,
        "mostly_not_comparable": readiness.mostly_incomparable_reads,
        "last_at": format_time(readiness.last_at),
        "operations": [
            {"operation": name, **{count: getattr(tally, count) for count in TALLY_COUNTS}}
            for name, tally in readiness.operations.items()
        ],
        "differences": [
            {
                "operation": difference.operation,
                "kind": difference.kind,
                "place": difference.place,
                "answers": difference.answers,
                "explained": difference.why,
                "example": asdict(difference.example),
            }
            for difference in readiness.differences
        ],
    }


def _print_key_readiness(readiness: KeyReadiness) -> None:
    click.echo(f"{readiness.owner}, key {readiness.key}: {readiness.sentence}\n")
    rows = [
        [name, *(getattr(tally, count) for count in TALLY_COUNTS)]
        for name, tally in readiness.operations.items()
    ]
    output.print_table(["operation", "compared", "different", "not comparable", "dropped"], rows)
    click.echo("")
    for difference in readiness.differences:
        reason = f"; ignored: {difference.why}" if difference.why else ""
        place = f"{difference.operation}: {difference.kind} at {difference.place}"
        click.echo(f"{place}, in {pluralize(difference.answers, 'response')}{reason}")
        if (example := difference.example).request_id:
            values = f"legacy {example.control}, current {example.candidate}"
            click.echo(f"    for example request {example.request_id}: {values}")
    if readiness.unused_reads:
        click.echo(
            f"Never compared: {', '.join(readiness.unused_reads)}, which it is not known to use"
        )
    for obstacle in readiness.obstacles:
        click.echo(obstacle)
    click.echo("")
