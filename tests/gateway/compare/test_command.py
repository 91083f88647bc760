"""The `compare` command: exit codes, output, report files and refused arguments."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.cli.compare import _open_report
from gateway.compare.report_schema import FORMAT, VERSION, Report
from tests.gateway.compare.towns import (
    CANDIDATE_KEY,
    CONTROL_KEY,
    Heard,
    Said,
    Town,
    open_town,
)
from tests.processes import COMMAND, SECONDS, command, environment

PATIENCE = 3 * SECONDS

KEYS = {"CONTROL_API_KEY": CONTROL_KEY, "CANDIDATE_API_KEY": CANDIDATE_KEY}


@asynccontextmanager
async def towns(candidate: Any = None) -> AsyncIterator[tuple[Town, Town]]:
    async with open_town(lambda _: {"ok": True, "amount": "1.00"}) as control:
        async with open_town(candidate or control.says) as other:
            yield control, other


async def run(
    folder: Path, control: str, candidate: str, *more: str, keys: dict[str, str] = KEYS
) -> subprocess.CompletedProcess[str]:
    (folder / "reads.txt").write_text("GET /v1/recipients?search=ada%40example.com\n")
    own = {name: value for name, value in os.environ.items() if name not in KEYS}
    return await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, "compare", "--control", control, "--candidate", candidate, *more],
        cwd=folder,
        env={**{name: value for name, value in environment().items() if name in own}, **keys},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


async def test_two_that_say_the_same_end_with_0(tmp_path: Path) -> None:
    async with towns() as (control, candidate):
        done = await run(tmp_path, control.url, candidate.url, "reads.txt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\nEqual: 1 answer of each side says the same.\n")
    assert f"{control.url}  1 answer, median" in done.stdout
    assert done.stderr == ""


async def test_two_that_differ_end_with_1_and_tell_where(tmp_path: Path) -> None:
    async with towns(lambda _: {"ok": True, "amount": "1.01"}) as (control, candidate):
        done = await run(tmp_path, control.url, candidate.url, "reads.txt")
    assert done.returncode == 1
    assert done.stdout.endswith("\n1 difference, in 1 of 1 answer.\n")
    assert [
        word for word in done.stdout.split() if word in ("value", "amount", "1.00", "1.01")
    ] == ["value", "amount", "1.00", "1.01"]
    assert "\x1b" not in done.stdout + done.stderr
    assert "ada" not in done.stdout


async def test_a_side_that_is_not_there_ends_with_2_and_one_line(tmp_path: Path) -> None:
    async with towns() as (control, _):
        done = await run(tmp_path, control.url, "http://127.0.0.1:1", "reads.txt")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "candidate at http://127.0.0.1:1 cannot be reached" in done.stderr
    assert done.stdout == ""


async def test_addresses_may_end_with_their_version(tmp_path: Path) -> None:
    async with towns() as (control, candidate):
        done = await run(tmp_path, f"{control.url}/v1", f"{candidate.url}/v1/", "reads.txt")
        assert (done.returncode, control.lines) == (0, candidate.lines)
        assert control.lines[0].startswith("GET /v1/recipients?")


@pytest.mark.parametrize(
    ("more", "keys", "expected_text"),
    [
        (["reads.txt"], {"CONTROL_API_KEY": "x"}, "CANDIDATE_API_KEY is not set"),
        (["reads.txt"], {"CANDIDATE_API_KEY": "x"}, "CONTROL_API_KEY is not set"),
        (
            ["reads.txt"],
            KEYS | {"CONTROL_API_KEY": "a\nb"},
            "not an API key; it must be printable ASCII",
        ),
        ([], KEYS, "Missing argument"),
        (["nowhere.txt"], KEYS, "nowhere.txt: No such file or directory"),
        (["reads.txt", "--rules", "bad.toml"], KEYS, "bad.toml: ignore #1.reason"),
        (["reads.txt", "--html", "no/such/x.html"], KEYS, "no/such/x.html cannot be written"),
        (["reads.txt", "--side-by-side", "0"], KEYS, "side-by-side"),
    ],
)
async def test_a_mistake_is_one_line_and_2_and_nothing_is_asked(
    tmp_path: Path, more: list[str], keys: dict[str, str], expected_text: str
) -> None:
    (tmp_path / "bad.toml").write_text("[[ignore]]\npath = 'a'\n")
    async with towns() as (control, candidate):
        done = await run(tmp_path, control.url, candidate.url, *more, keys=keys)
        assert control.heard == candidate.heard == []
    assert done.returncode == 2
    assert expected_text in done.stderr
    assert (done.stderr.count("\n"), done.stdout) == (1, "")


@pytest.mark.parametrize(
    "url",
    [
        "https://me:geheim123@old.example",
        "ftp://old.example",
        "old.example",
        "http://",
        "http://x:y",
    ],
)
async def test_an_address_that_is_none_or_holds_a_secret_is_refused_unsaid(
    tmp_path: Path, url: str
) -> None:
    done = await run(tmp_path, url, "http://127.0.0.1:1", "reads.txt")
    assert done.returncode == 2
    assert "--control: the URL" in done.stderr or "--control: not a URL" in done.stderr
    assert "geheim" not in done.stderr


SECRETS = "Quinta Marshmallow, quinta@private.example, DE89370400440532013000"


async def test_what_is_written_holds_no_key_and_no_person(tmp_path: Path) -> None:
    def says(heard: Heard) -> Any:
        key = heard.headers["x-api-key"]
        body = {"name": SECRETS, "iban": "DE89370400440532013000", "headers": {"X-API-Key": key}}
        return Said(body, headers={"Content-Type": f"application/{key}"})

    async with towns(says) as (control, candidate):
        control.says = says
        more = ("reads.txt", "--json", "out.json", "--html", "out.html")
        done = await run(tmp_path, control.url, candidate.url, *more)
        assert done.returncode == 1, done.stderr
        written = done.stdout + done.stderr
        written += "".join((tmp_path / name).read_text() for name in ("out.json", "out.html"))
        for canary in (CONTROL_KEY, CANDIDATE_KEY, *SECRETS.split(", "), "Quinta", "ada@"):
            assert canary not in written
        shown = await run(tmp_path, control.url, candidate.url, *more, "--show-values")
    assert shown.returncode == 1
    written = shown.stdout + (tmp_path / "out.json").read_text()
    assert CONTROL_KEY not in written
    assert "ada@example.com" in written
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600


async def test_the_json_report_has_the_shape_that_is_promised(tmp_path: Path) -> None:
    async with towns(lambda _: Said({"ok": 1}, 200)) as (control, candidate):
        done = await run(tmp_path, control.url, candidate.url, "reads.txt", "--json", "-")
    told = json.loads(done.stdout)
    assert [*told][:2] == ["format", "version"]
    assert (told["format"], told["version"]) == (FORMAT, VERSION)
    shape = TypeAdapter(Report)
    read = shape.dump_python(shape.validate_json(done.stdout, strict=True), mode="json")
    assert read == told, "validation drops keys that the schema does not name"
    assert (told["result"], told["exit_code"], done.returncode) == ("different", 1, 1)


@pytest.mark.parametrize("more", [["--json", "-"], ["--show-values"]])
async def test_what_the_output_has_no_letter_for_ends_nothing(
    more: list[str], tmp_path: Path
) -> None:
    def odd(_heard: Heard) -> Any:
        return {"ok": True, "amount": "1.00", "\ud800 →": "→"}

    async with towns(odd) as (control, candidate):
        done = await run(
            tmp_path,
            control.url,
            candidate.url,
            "reads.txt",
            *more,
            keys={**KEYS, "PYTHONIOENCODING": "iso8859-2"},
        )
    assert (done.returncode, done.stderr) == (1, "")


async def test_an_earlier_report_stays_where_there_is_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("earlier")
    done = await run(tmp_path, "nothing", "http://127.0.0.1:1", "reads.txt", "--json", "out.json")
    assert done.returncode == 2
    assert (tmp_path / "out.json").read_text() == "earlier"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.json", "reads.txt"]


def test_what_a_killed_run_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".out.json.{os.getpid()}").write_text("")
    with _open_report(tmp_path / "out.json", private=False) as write:
        write("the report")
    assert (tmp_path / "out.json").read_text() == "the report"


async def test_a_run_that_is_killed_leaves_no_draft_of_its_report(tmp_path: Path) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def asks(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(asks, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    (tmp_path / "reads.txt").write_text("GET /v1/recipients\n")
    (tmp_path / "out.json").write_text("earlier")
    sides = ("--control", url, "--candidate", url)
    running = await asyncio.create_subprocess_exec(
        *(*COMMAND, "compare", *sides, "reads.txt", "--json", "out.json", "--html", "out.html"),
        cwd=tmp_path,
        env={**environment(), **KEYS},
    )
    async with asyncio.timeout(PATIENCE):
        await asked.wait()
        running.terminate()
        assert await running.wait() != 0
    over.set()
    server.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.json", "reads.txt"]
    assert (tmp_path / "out.json").read_text() == "earlier"


async def test_on_a_terminal_there_are_ruled_tables_and_nothing_of_the_bar_stays(
    tmp_path: Path,
) -> None:
    def hostile(_heard: Heard) -> Any:
        return {"ok": True, "amount": "1.00", "status": "\x1b]0;title\x07\x1b[2J"}

    (tmp_path / "reads.txt").write_text("GET /v1/recipients\n")
    ours, theirs = pty.openpty()
    async with towns(hostile) as (control, candidate):
        arguments = ["--control", control.url, "--candidate", candidate.url, "--show-values"]
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, "compare", *arguments, "reads.txt"),
            cwd=tmp_path,
            env=environment(**KEYS, COLUMNS="160", TERM="xterm"),
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        async with asyncio.timeout(PATIENCE):
            said = await asyncio.to_thread(_everything, ours)
            assert await process.wait() == 1
    assert "━┳━" in said
    assert "1 difference, in 1 of 1 answer." in said
    assert "\x1b]0;" not in said
    assert "\x1b[2J" not in said.rpartition("━┳━")[2]


def _everything(terminal: int) -> str:
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as reader:
        while True:
            try:
                parts.append(reader.read(65536))
            except OSError:  # the other end of the terminal is closed
                return b"".join(parts).decode()


def test_help_says_what_it_is_for_and_how_it_ends(tmp_path: Path) -> None:
    said = command("compare", "--help", folder=tmp_path).stdout
    for word in ("CONTROL_API_KEY", "--allow-writes", "--html", "Exit code 0", "HAR"):
        assert word in said
