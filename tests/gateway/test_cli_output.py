"""Output of every command in pipes, in scripts and on terminals, and shell completion."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pty
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.__main__ import main as start_command
from gateway.cli import COMMAND_GROUPS, gateway, main
from gateway.cli.output import run_to_completion
from tests.processes import (
    COMMAND,
    build_command,
    build_configuration,
    build_environment,
    run_installed_command,
)

ROOT = Path(__file__).parents[2]
KEY = {
    "merchant": "acme", "environment": "sandbox", "name": "shop",
    "api_key": "an-api-key-of-the-shop", "access_key": "AK", "secret_key": "made-up",
}  # fmt: skip
REPORT_COMMANDS = [
    ["operations"],
    ["explain", "-X", "POST", "/v1/batches", "-d", '{"sourceCurrency":"USD"}'],
    ["report", "usage"],
    ["batches", "abandoned"],
    ["writes", "unsettled"],
    ["keys", "list"],
    ["doctor"],
    ["check"],
]


@pytest.fixture(scope="module")
def configured_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and a state; nothing listens at the service's address."""
    folder = tmp_path_factory.mktemp("operator")
    (folder / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    result = run_installed_command("keys", "import", "-", folder=folder, stdin=json.dumps(KEY))
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("arguments", REPORT_COMMANDS, ids=" ".join)
def test_json_report_is_one_document(arguments: list[str], configured_folder: Path) -> None:
    result = run_installed_command(
        *arguments[:2], "--json", *arguments[2:], folder=configured_folder
    )
    assert result.returncode == (1 if arguments == ["doctor"] else 0), result.stderr
    assert isinstance(json.loads(result.stdout), dict)
    assert result.stderr == ""
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("arguments", REPORT_COMMANDS, ids=" ".join)
def test_piped_output_has_no_colours_and_no_frames(
    arguments: list[str], configured_folder: Path
) -> None:
    result = run_installed_command(
        *arguments, folder=configured_folder, TERM="xterm-256color", COLORTERM="truecolor"
    )
    assert result.stdout
    assert not re.search("[\x1b│┃━─]", result.stdout + result.stderr)
    assert not result.stdout.startswith("\n")


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("[server]\nprot = 1", "server.prot"),
        ("[server", "not TOML"),
        (None, "there is no such file"),
    ],
)
def test_check_reports_invalid_configuration_as_json(
    text: str | None, expected_text: str, tmp_path: Path
) -> None:
    if text:
        (tmp_path / "gateway.toml").write_text(text)
    result = run_installed_command("check", "--json", folder=tmp_path)
    assert result.returncode == (1 if text else 2)
    report = json.loads(result.stdout)
    assert (report["ok"], expected_text in report["problems"][0], result.stderr) == (
        False,
        True,
        "",
    )


def test_missing_configuration_is_reported_with_folder(tmp_path: Path) -> None:
    result = run_installed_command("doctor", "--json", folder=tmp_path)
    (error_finding,) = (
        finding
        for finding in json.loads(result.stdout)["findings"]
        if "environments" in finding["said"]
    )
    assert f"there is no gateway.toml in {tmp_path}" in error_finding["said"]


def test_check_says_that_other_checks_need_valid_settings(tmp_path: Path) -> None:
    text = (
        "[server]\nport = 'x'\nworkers = 2\n[environments.live]\nbase_url = 'http://127.0.0.1:9'\n"
    )
    for valid_text, is_complete in ((text, False), (text.replace("'x'", "1"), True)):
        (tmp_path / "gateway.toml").write_text(valid_text)
        stderr = run_installed_command("check", folder=tmp_path).stderr
        assert ("server.workers" in stderr, "Run this again" in stderr) == (
            is_complete,
            not is_complete,
        )


def test_check_warns_of_key_file_that_nothing_creates(tmp_path: Path) -> None:
    text = (
        "[environments.live]\nbase_url = 'http://127.0.0.1:9'\n[state]\nurl = 'postgresql:///x'\n"
    )
    (tmp_path / "gateway.toml").write_text(text)
    result = run_installed_command("check", folder=tmp_path)
    assert result.returncode == 0
    assert (
        "Warning: gateway.toml:3: state.encryption_key_file: there is no key file" in result.stderr
    )
    key_result = run_installed_command("keys", "new-encryption-key", folder=tmp_path)
    assert key_result.returncode == 0, key_result.stderr
    assert run_installed_command("check", folder=tmp_path).stderr == ""


# On a terminal


def run_on_terminal(columns: int, *arguments: str, folder: Path, types: bytes = b"") -> str:
    """Run a command on a terminal with this width and input, and return its output."""
    parent_end, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = build_environment(TERM="xterm-256color", COLUMNS=str(columns))
    with subprocess.Popen(
        [*build_command(), *arguments],
        cwd=folder,
        env=environ,
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
    ):
        os.close(child_end)
        os.write(parent_end, types)
        output = b""
        with contextlib.suppress(OSError):  # a closed terminal
            while part := os.read(parent_end, 65536):
                output += part
    os.close(parent_end)
    return output.decode()


def test_brownout_asks_for_confirmation_on_terminal_only(
    configured_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(configured_folder, tmp_path, dirs_exist_ok=True)
    arguments = ["brownout", "schedule", "--until", "2099-01-01T00:00:00Z", "--key", "shop"]
    success_text = "refuses requests of acme, key shop"
    declined_output = run_on_terminal(200, *arguments, folder=tmp_path, types=b"n\n")
    assert "Refuse requests of acme, key shop from " in declined_output
    assert "nothing was changed" in declined_output
    assert success_text not in declined_output
    assert success_text in run_on_terminal(200, *arguments, folder=tmp_path, types=b"y\n")
    assert success_text in run_on_terminal(200, *arguments, "--yes", folder=tmp_path)
    assert success_text in run_installed_command(*arguments, folder=tmp_path).stdout


def test_freeze_asks_for_no_confirmation(configured_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(configured_folder, tmp_path, dirs_exist_ok=True)
    assert "Frozen." in run_on_terminal(200, "freeze", "--all", folder=tmp_path)


def test_missing_confirmation_is_reported_on_its_own_line(configured_folder: Path) -> None:
    arguments = ("modes", "set", "--key", "shop", "translate")
    for stdin, expected_text in (("", "not confirmed"), ("n\n", "nothing was changed")):
        result = run_installed_command(*arguments, folder=configured_folder, stdin=stdin)
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1].startswith(f"payout-gateway: {expected_text}")


def test_future_that_a_library_left_behind_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lost database connection leaves one, which is collected after the command's error."""
    left_behind = []

    async def lose_connection() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(ConnectionError("unexpected connection_lost() call"))
        left_behind.append(future)

    run_to_completion(lose_connection())
    left_behind.clear()
    gc.collect()
    assert caplog.records == []


def test_internal_error_is_one_line_without_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_internal_error(**_: object) -> None:
        raise LookupError("the secret that was read")

    importlib.import_module("gateway.cli.options")  # as most commands import it
    monkeypatch.setattr(gateway, "main", raise_internal_error)
    with pytest.raises(SystemExit) as exit_error:
        main()
    assert exit_error.value.code == 70
    output = capsys.readouterr().err
    assert re.fullmatch(r"payout-gateway: internal error: LookupError at \S.*\n", output)
    assert "secret" not in output


def test_interrupt_while_the_gateway_is_imported_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class InterruptedImport:
        @staticmethod
        def find_spec(*_arguments: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "gateway.cli")
    monkeypatch.setattr(sys, "meta_path", [InterruptedImport])
    with pytest.raises(SystemExit) as ending:
        start_command()
    assert ending.value.code == 130


def test_wide_terminal_shows_a_table_and_narrow_one_shows_records(
    configured_folder: Path,
) -> None:
    wide_output = run_on_terminal(200, "keys", "list", folder=configured_folder)
    assert re.search(r"(?m)^name  key +merchant .*\n^shop  ", wide_output.replace("\r", ""))
    narrow_output = run_on_terminal(60, "keys", "list", folder=configured_folder)
    assert re.search(r"(?m)^name +shop\s", narrow_output)
    for terminal_output in (wide_output, narrow_output):
        plain_text = re.sub(r"\x1b\[[\d;]*m", "", terminal_output)
        assert "access key" in plain_text
        assert "sandbox" in plain_text
        assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", plain_text), "nothing is cut off"


def test_errors_are_coloured_unless_no_color_is_set(
    configured_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run_on_terminal(100, "doctor", folder=configured_folder)
    assert re.search(r"\x1b\[31merror", output)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(
        r"\x1b\[[\d;]*3\dm", run_on_terminal(100, "doctor", folder=configured_folder)
    )


def test_slow_command_shows_progress_on_terminal(tmp_path: Path) -> None:
    """The doctor waits for a service that never answers, until its timeout."""
    with socket.socket() as silent_server:
        silent_server.bind(("127.0.0.1", 0))
        silent_server.listen(8)
        address = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        (tmp_path / "gateway.toml").write_text(
            build_configuration(address, "[upstream]\ntimeout_seconds = 3")
        )
        import_result = run_installed_command(
            "keys", "import", "-", folder=tmp_path, stdin=json.dumps(KEY)
        )
        assert import_result.returncode == 0, import_result.stderr
        assert "Checking" in run_on_terminal(100, "doctor", folder=tmp_path)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["kyes"], "No such command 'kyes'. Did you mean 'keys'?; see `payout-gateway --help`"),
        (["keys", "lst"], "Did you mean 'list'?; see `payout-gateway keys --help`"),
        (["nonsense"], "No such command 'nonsense'; see `payout-gateway --help`"),
        (["trace"], "Missing argument 'ID'; see `payout-gateway trace --help`"),
        (["check", "--config", "elsewhere.toml"], "elsewhere.toml: there is no such file in /"),
    ],
)
def test_typo_is_answered_with_suggestion(
    arguments: list[str], expected_text: str, tmp_path: Path
) -> None:
    result = run_installed_command(*arguments, folder=tmp_path)
    assert result.returncode in (1, 2)
    assert expected_text in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_invalid_database_file_is_reported_with_advice(
    configured_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    (tmp_path / "gateway.key").write_bytes((configured_folder / "gateway.key").read_bytes())
    (tmp_path / "gateway.db").write_bytes(b"no database at all " * 500)
    result = run_installed_command("keys", "list", folder=tmp_path)
    assert result.returncode == 2
    assert "gateway.db cannot be used (file is not a database)" in result.stderr
    assert "payout-gateway restore" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["trace"], ["erase", "--key", "demo-sandbox", "--yes"], ["brownout", "off"]],
    ids=" ".join,
)
def test_id_that_is_not_utf8_is_refused_in_one_line(
    arguments: list[str], configured_folder: Path
) -> None:
    result = run_installed_command(*arguments, "R-\udcff", folder=configured_folder)
    assert result.returncode == 2
    assert re.fullmatch(
        r"payout-gateway: Invalid value for '.*ID.*': not UTF-8 text; see `.* --help`\n",
        result.stderr,
    )


@pytest.mark.parametrize("command_", ["operations", "check"])
def test_write_error_on_output_is_reported_in_one_line(
    command_: str, configured_folder: Path
) -> None:
    with Path("/dev/full").open("w") as full_device:
        result = subprocess.run(
            [*COMMAND, command_],
            cwd=configured_folder, env=build_environment(), stdout=full_device, stderr=subprocess.PIPE, text=True,
            check=False, timeout=30,
        )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == "payout-gateway: No space left on device: the output is incomplete\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_fail_a_command(
    closed: str, configured_folder: Path
) -> None:
    command_line = f"exec {shlex.join([*COMMAND, 'check'])} {closed}"
    result = subprocess.run(
        ["sh", "-c", command_line],
        cwd=configured_folder, env=build_environment(), capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


def test_unwritable_output_is_reported_in_one_line(configured_folder: Path) -> None:
    with Path(os.devnull).open() as read_only_stream:
        result = subprocess.run(
            [*COMMAND, "operations"],
            cwd=configured_folder, env=build_environment(), stdout=read_only_stream,
            stderr=subprocess.PIPE, text=True, check=False, timeout=30,
        )  # fmt: skip
    assert result.returncode == 2
    assert re.fullmatch(
        r"payout-gateway: Bad file descriptor: the command did not finish \(at \S+ \w+\)\n",
        result.stderr,
    )


# Completion


def complete_line(line: str, shell: str = "bash") -> list[str]:
    typed_words = line.split(" ")
    environ = build_environment(
        _PAYOUT_GATEWAY_COMPLETE=f"{shell}_complete",
        COMP_WORDS=line,
        COMP_CWORD=str(len(typed_words) - 1),
    )
    result = subprocess.run(
        build_command(), env=environ, capture_output=True, text=True, check=False, timeout=20
    )
    assert result.returncode == 0, result.stderr
    return [completion.partition(",")[2] for completion in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected_completions"),
    [
        ("payout-gateway wr", ["writes"]),
        ("payout-gateway keys re", ["revoke"]),
        ("payout-gateway modes set --group b", ["batches", "balances"]),
        ("payout-gateway freeze --env", ["--environment"]),
        ("payout-gateway freeze --environment s", ["sandbox"]),
    ],
)
def test_shell_completes_commands_options_and_values(
    line: str, expected_completions: list[str]
) -> None:
    assert sorted(complete_line(line)) == sorted(expected_completions)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_exists_for_each_shell(shell: str) -> None:
    environ = {**os.environ, "_PAYOUT_GATEWAY_COMPLETE": f"{shell}_source"}
    result = subprocess.run(
        build_command(), env=environ, capture_output=True, text=True, check=False, timeout=20
    )
    assert result.returncode == 0, result.stderr
    assert "_PAYOUT_GATEWAY_COMPLETE" in result.stdout


# Documented commands

DOCUMENTED_PAGES = [ROOT / "README.md", *sorted((ROOT / "deploy").rglob("*.md"))]


def list_documented_commands(page: Path) -> list[str]:
    """List the code lines of a page that run the command, without comments and redirections."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    command_lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    line_parts = [
        part.strip() for line in command_lines for part in re.split(r"\s#\s|&&", line)[:2]
    ]
    inline_commands = re.findall(
        r"`(payout-gateway [^`…]+)`", page.read_text("utf-8").replace("\n", " ")
    )
    commands = [part for part in line_parts if part.startswith("payout-gateway ")] + inline_commands
    return [
        re.split(r"\s[<>]", command_text)[0]
        for command_text in commands
        if "…" not in command_text and "|" not in command_text
    ]


@pytest.mark.parametrize(
    "page", DOCUMENTED_PAGES, ids=lambda path: path.parent.name + "/" + path.name
)
def test_every_documented_command_is_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in list_documented_commands(page):
        usage_error = find_usage_error(shlex.split(line)[1:])
        assert usage_error is None, f"{page.name}: {line}: {usage_error}"


def test_commands_of_runbook_are_found() -> None:
    assert len(list_documented_commands(ROOT / "deploy" / "runbook.md")) > 30


def find_usage_error(arguments: list[str]) -> str | None:
    """Return the usage error of a command line, if any; files that it names need not exist."""
    try:
        parsed_command: click.Command = gateway
        context = click.Context(gateway, info_name="payout-gateway")
        while isinstance(parsed_command, click.Group) and arguments:
            if parsed_command.name == "compare" and arguments[0] != "report":
                arguments = ["run", *arguments]
            name, subcommand, arguments = parsed_command.resolve_command(context, arguments)
            assert subcommand is not None
            parsed_command, context = (
                subcommand,
                click.Context(subcommand, info_name=name, parent=context),
            )
        parsed_command.make_parser(context).parse_args(arguments)
    except click.UsageError as error:
        return error.format_message()
    return None


def test_help_groups_commands_by_task() -> None:
    text = CliRunner().invoke(gateway, ["--help"]).output
    for title, commands in COMMAND_GROUPS.items():
        _, _, section = text.partition(f"{title}:\n")
        for name in commands:
            assert f"\n  {name} " in "\n" + section.partition("\n\n")[0]
