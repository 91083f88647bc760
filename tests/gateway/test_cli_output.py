"""Output of every command in pipes, in scripts and on terminals, and shell completion."""

from __future__ import annotations

import contextlib
import fcntl
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
import termios
from pathlib import Path

import click
import pytest

from gateway.cli import COMMANDS, gateway, main
from tests.processes import COMMAND, command, configuration, environment

ROOT = Path(__file__).parents[2]
KEY = {
    "merchant": "acme", "environment": "sandbox", "name": "shop",
    "api_key": "an-api-key-of-the-shop", "access_key": "AK", "secret_key": "made-up",
}  # fmt: skip
REPORTS = [
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and a state; nothing listens at the service's address."""
    made = tmp_path_factory.mktemp("operator")
    (made / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    imported = command("keys", "import", "-", folder=made, stdin=json.dumps(KEY))
    assert imported.returncode == 0, imported.stderr
    return made


@pytest.mark.parametrize("words", REPORTS, ids=" ".join)
def test_a_report_is_one_json_document_and_nothing_else(words: list[str], folder: Path) -> None:
    said = command(*words[:2], "--json", *words[2:], folder=folder)
    assert said.returncode == (1 if words == ["doctor"] else 0), said.stderr
    assert isinstance(json.loads(said.stdout), dict)
    assert said.stderr == ""
    assert "\x1b" not in said.stdout


@pytest.mark.parametrize("words", REPORTS, ids=" ".join)
def test_what_is_piped_has_no_colours_and_no_frames(words: list[str], folder: Path) -> None:
    said = command(*words, folder=folder, TERM="xterm-256color", COLORTERM="truecolor")
    assert said.stdout
    assert not re.search("[\x1b│┃━─]", said.stdout + said.stderr)
    assert not said.stdout.startswith("\n")


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("[server]\nprot = 1", "server.prot"),
        ("[server", "not TOML"),
        (None, "there is no such file"),
    ],
)
def test_a_configuration_that_is_no_good_is_a_json_document_of_check_too(
    text: str | None, expected_text: str, tmp_path: Path
) -> None:
    if text:
        (tmp_path / "gateway.toml").write_text(text)
    said = command("check", "--json", folder=tmp_path)
    assert said.returncode == (1 if text else 2)
    told = json.loads(said.stdout)
    assert (told["ok"], expected_text in told["problems"][0], said.stderr) == (False, True, "")


def test_a_doctor_of_what_cannot_be_run_says_so_as_json(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text("[server]\nworkers = 2")
    said = command("doctor", "--json", folder=tmp_path)
    assert said.returncode == 1
    told = json.loads(said.stdout)["findings"]
    assert {"configuration", "state"} <= {one["looked_at"] for one in told if one["do"]}


def test_who_is_in_the_wrong_folder_is_told_that_no_configuration_is_there(tmp_path: Path) -> None:
    said = command("doctor", "--json", folder=tmp_path)
    (wrong,) = (one for one in json.loads(said.stdout)["findings"] if "environments" in one["said"])
    assert f"there is no gateway.toml in {tmp_path}" in wrong["said"]


def test_a_key_file_that_nobody_makes_is_warned_of_by_check(tmp_path: Path) -> None:
    text = (
        "[environments.live]\nbase_url = 'http://127.0.0.1:9'\n[state]\nurl = 'postgresql:///x'\n"
    )
    (tmp_path / "gateway.toml").write_text(text)
    said = command("check", folder=tmp_path)
    assert said.returncode == 0
    assert "Warning: gateway.toml:3: state.encryption_key_file: there is no key file" in said.stderr
    made = command("keys", "new-encryption-key", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert command("check", folder=tmp_path).stderr == ""


# On a terminal


def on_a_terminal(columns: int, *words: str, folder: Path, types: bytes = b"") -> str:
    """Run a command on a terminal with this width and input, and return its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    asked = environment(TERM="xterm-256color", COLUMNS=str(columns))
    with subprocess.Popen(
        [*COMMAND, *words], cwd=folder, env=asked, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        os.write(ours, types)
        said = b""
        with contextlib.suppress(OSError):  # a closed terminal
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    return said.decode()


def test_a_brownout_is_asked_about_on_a_terminal_and_nowhere_else(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    words = ["brownout", "schedule", "--until", "2099-01-01T00:00:00Z", "--key", "shop"]
    done = "refuses requests of shop"
    refused = on_a_terminal(200, *words, folder=tmp_path, types=b"n\n")
    assert "Refuse requests of shop from " in refused
    assert "nothing was changed" in refused
    assert done not in refused
    assert done in on_a_terminal(200, *words, folder=tmp_path, types=b"y\n")
    assert done in on_a_terminal(200, *words, "--yes", folder=tmp_path)
    assert done in command(*words, folder=tmp_path).stdout


def test_a_freeze_asks_nobody(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert "Frozen." in on_a_terminal(200, "freeze", "--all", folder=tmp_path)


def test_an_answer_that_does_not_come_is_told_on_a_line_of_its_own(folder: Path) -> None:
    words = ("modes", "set", "--key", "shop", "translate")
    for stdin, says in (("", "not confirmed"), ("n\n", "nothing was changed")):
        said = command(*words, folder=folder, stdin=stdin)
        assert said.returncode == 2
        assert said.stderr.splitlines()[-1].startswith(f"payout-gateway: {says}")


def test_a_fault_of_its_own_is_one_line_and_nothing_that_was_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise LookupError("the secret that was read")

    importlib.import_module("gateway.cli.command_group")  # as most commands import it
    monkeypatch.setattr(gateway, "main", fails)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 70
    said = capsys.readouterr().err
    assert re.fullmatch(r"payout-gateway: internal error: LookupError at \S.*\n", said)
    assert "secret" not in said


def test_a_wide_terminal_is_shown_a_ruled_table_and_a_narrow_one_all_of_each_row(
    folder: Path,
) -> None:
    wide = on_a_terminal(200, "keys", "list", folder=folder)
    assert "│ shop" in wide
    narrow = on_a_terminal(60, "keys", "list", folder=folder)
    assert "│" not in narrow
    for said in (wide, narrow):
        plain = re.sub(r"\x1b\[[\d;]*m", "", said)
        assert "access key" in plain
        assert "sandbox" in plain
        assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", plain), "nothing is cut off"


def test_what_is_wrong_has_a_colour_unless_nobody_wants_any(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = on_a_terminal(100, "doctor", folder=folder)
    assert re.search(r"\x1b\[1;31mwrong", said)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\dm", on_a_terminal(100, "doctor", folder=folder))


def test_what_takes_its_time_shows_a_bar_on_a_terminal(tmp_path: Path) -> None:
    """The doctor waits for a service that never answers, until its timeout."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "gateway.toml").write_text(
            configuration(address, "[upstream]\ntimeout_seconds = 3")
        )
        imported = command("keys", "import", "-", folder=tmp_path, stdin=json.dumps(KEY))
        assert imported.returncode == 0, imported.stderr
        assert "Checking" in on_a_terminal(100, "doctor", folder=tmp_path)


# Mistakes


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["kyes"], "No such command 'kyes'. Did you mean 'keys'?; see `payout-gateway --help`"),
        (["keys", "lst"], "Did you mean 'list'?; see `payout-gateway keys --help`"),
        (["nonsense"], "No such command 'nonsense'; see `payout-gateway --help`"),
        (["trace"], "Missing argument 'ID'; see `payout-gateway trace --help`"),
        (["check", "--config", "elsewhere.toml"], "elsewhere.toml: there is no such file in /"),
    ],
)
def test_who_mistypes_is_told_what_may_have_been_meant(
    words: list[str], expected_text: str, tmp_path: Path
) -> None:
    said = command(*words, folder=tmp_path)
    assert said.returncode in (1, 2)
    assert expected_text in said.stderr
    assert said.stderr.count("\n") == 1
    assert said.stdout == ""


def test_a_state_that_is_none_is_told_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    (tmp_path / "gateway.key").write_bytes((folder / "gateway.key").read_bytes())
    (tmp_path / "gateway.db").write_bytes(b"no database at all " * 500)
    said = command("keys", "list", folder=tmp_path)
    assert said.returncode == 2
    assert "gateway.db cannot be used (file is not a database)" in said.stderr
    assert "payout-gateway restore" in said.stderr


@pytest.mark.parametrize("command_", ["operations", "check"])
def test_an_output_that_cannot_be_written_is_one_line(command_: str, folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [*COMMAND, command_],
            cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, timeout=30,
        )  # fmt: skip
    assert said.returncode == 2
    assert said.stderr == "payout-gateway: No space left on device: the output is incomplete\n"


# Completion


def completed(line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    asked = environment(
        _PAYOUT_GATEWAY_COMPLETE=f"{shell}_complete",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1),
    )
    run = subprocess.run(
        COMMAND, env=asked, capture_output=True, text=True, check=False, timeout=20
    )
    assert run.returncode == 0, run.stderr
    return [each.partition(",")[2] for each in run.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("payout-gateway wr", ["writes"]),
        ("payout-gateway keys re", ["revoke"]),
        ("payout-gateway modes set --group b", ["batches", "balances"]),
        ("payout-gateway freeze --env", ["--environment"]),
        ("payout-gateway freeze --environment s", ["sandbox"]),
    ],
)
def test_the_shell_completes_commands_options_and_their_words(
    line: str, offered: list[str]
) -> None:
    assert sorted(completed(line)) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    asked = {**os.environ, "_PAYOUT_GATEWAY_COMPLETE": f"{shell}_source"}
    run = subprocess.run(
        COMMAND, env=asked, capture_output=True, text=True, check=False, timeout=20
    )
    assert run.returncode == 0, run.stderr
    assert "_PAYOUT_GATEWAY_COMPLETE" in run.stdout


# Documented commands

PAGES = [ROOT / "README.md", *sorted((ROOT / "deploy").rglob("*.md"))]


def typed(page: Path) -> list[str]:
    """List the code lines of a page that run the command, without comments and redirections."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"\s#\s|&&", line)[:2]]
    inline = re.findall(r"`(payout-gateway [^`…]+)`", page.read_text("utf-8").replace("\n", " "))
    found = [part for part in parts if part.startswith("payout-gateway ")] + inline
    return [re.split(r"\s[<>]", one)[0] for one in found if "…" not in one and "|" not in one]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.parent.name + "/" + path.name)
def test_every_command_in_the_pages_can_be_typed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in typed(page):
        refused = _misread(shlex.split(line)[1:])
        assert refused is None, f"{page.name}: {line}: {refused}"


def test_the_commands_of_the_runbook_are_found() -> None:
    assert len(typed(ROOT / "deploy" / "runbook.md")) > 30


def _misread(words: list[str]) -> str | None:
    """Return the usage error of a command line, if any; files that it names need not exist."""
    try:
        parsed: click.Command = gateway
        context = click.Context(gateway, info_name="payout-gateway")
        while isinstance(parsed, click.Group) and words:
            if parsed.name == "compare" and words[0] != "report":
                words = ["run", *words]
            name, found, words = parsed.resolve_command(context, words)
            assert found is not None
            parsed, context = found, click.Context(found, info_name=name, parent=context)
        parsed.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return error.format_message()
    return None


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`{name}" not in text] == []
