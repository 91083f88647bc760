"""The `compare` command: exit codes, output, report files and refused arguments."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.compare.report import FORMAT, VERSION
from tests.gateway.compare.fake_services import (
    CANDIDATE_KEY,
    CONTROL_KEY,
    FakeService,
    PlannedResponse,
    ReceivedRequest,
    open_fake_service,
)
from tests.processes import SECONDS, build_command, build_environment, run_installed_command

TIMEOUT_SECONDS = 3 * SECONDS

KEYS = {"CONTROL_API_KEY": CONTROL_KEY, "CANDIDATE_API_KEY": CANDIDATE_KEY}


@asynccontextmanager
async def open_two_services(
    candidate: Any = None,
) -> AsyncIterator[tuple[FakeService, FakeService]]:
    async with open_fake_service(lambda _: {"ok": True, "amount": "1.00"}) as control:
        async with open_fake_service(candidate or control.respond) as candidate_service:
            yield control, candidate_service


async def run_compare(
    folder: Path, control: str, candidate: str, *options: str, keys: dict[str, str] = KEYS
) -> subprocess.CompletedProcess[str]:
    (folder / "reads.txt").write_text("GET /v1/recipients?search=ada%40example.com\n")
    inherited_variables = {name: value for name, value in os.environ.items() if name not in KEYS}
    return await asyncio.to_thread(
        subprocess.run,
        [*build_command(), "compare", "--control", control, "--candidate", candidate, *options],
        cwd=folder,
        env={
            **{
                name: value
                for name, value in build_environment().items()
                if name in inherited_variables
            },
            **keys,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )


async def test_equal_sides_exit_with_0(tmp_path: Path) -> None:
    async with open_two_services() as (control, candidate):
        result = await run_compare(tmp_path, control.url, candidate.url, "reads.txt")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("\nEqual: 1 response matches.\n")
    assert f"{control.url}  1 response, median" in result.stdout
    assert result.stderr == ""


async def test_different_sides_exit_with_1_and_list_differences(tmp_path: Path) -> None:
    async with open_two_services(lambda _: {"ok": True, "amount": "1.01"}) as (control, candidate):
        result = await run_compare(tmp_path, control.url, candidate.url, "reads.txt")
    assert result.returncode == 1
    assert result.stdout.endswith("\n1 difference, in 1 of 1 response.\n")
    assert [
        cell for cell in result.stdout.split() if cell in ("value", "amount", "1.00", "1.01")
    ] == ["value", "amount", "1.00", "1.01"]
    assert "\x1b" not in result.stdout + result.stderr
    assert "ada" not in result.stdout


async def test_unreachable_side_exits_with_2_and_one_line(tmp_path: Path) -> None:
    async with open_two_services() as (control, _):
        result = await run_compare(tmp_path, control.url, "http://127.0.0.1:1", "reads.txt")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "candidate at http://127.0.0.1:1 cannot be reached" in result.stderr
    assert result.stdout == ""


async def test_addresses_may_end_with_version(tmp_path: Path) -> None:
    async with open_two_services() as (control, candidate):
        result = await run_compare(
            tmp_path, f"{control.url}/v1", f"{candidate.url}/v1/", "reads.txt"
        )
        assert (result.returncode, control.lines) == (0, candidate.lines)
        assert control.lines[0].startswith("GET /v1/recipients?")


async def test_service_is_not_compared_with_itself(tmp_path: Path) -> None:
    same_keys = dict.fromkeys(KEYS, CONTROL_KEY)
    async with open_two_services() as (control, _):
        arguments = (tmp_path, control.url, f"{control.url}/v1", "reads.txt")
        result = await run_compare(*arguments, keys=same_keys)
        assert (result.returncode, control.requests) == (2, [])
        assert "the same address and API key on both sides" in result.stderr
        assert (await run_compare(*arguments)).returncode == 0, "two keys may have two modes"


@pytest.mark.parametrize(
    ("options", "keys", "expected_text"),
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
    ],
)
async def test_usage_error_exits_with_2_and_sends_nothing(
    tmp_path: Path, options: list[str], keys: dict[str, str], expected_text: str
) -> None:
    (tmp_path / "bad.toml").write_text("[[ignore]]\npath = 'a'\n")
    async with open_two_services() as (control, candidate):
        result = await run_compare(tmp_path, control.url, candidate.url, *options, keys=keys)
        assert control.requests == candidate.requests == []
    assert result.returncode == 2
    assert expected_text in result.stderr
    assert (result.stderr.count("\n"), result.stdout) == (1, "")


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
async def test_invalid_address_or_address_with_secret_is_refused_without_quoting_it(
    tmp_path: Path, url: str
) -> None:
    result = await run_compare(tmp_path, url, "http://127.0.0.1:1", "reads.txt")
    assert result.returncode == 2
    assert "--control: the URL" in result.stderr or "--control: not a URL" in result.stderr
    assert "geheim" not in result.stderr


CANARIES = "Quinta Marshmallow, quinta@private.example, DE89370400440532013000"


async def test_output_contains_no_key_and_no_personal_data(tmp_path: Path) -> None:
    def respond(request: ReceivedRequest) -> Any:
        key = request.headers["x-api-key"]
        body = {"name": CANARIES, "iban": "DE89370400440532013000", "headers": {"X-API-Key": key}}
        return PlannedResponse(body, headers={"Content-Type": f"application/{key}"})

    async with open_two_services(respond) as (control, candidate):
        control.respond = respond
        options = ("reads.txt", "--json", "out.json", "--html", "out.html")
        result = await run_compare(tmp_path, control.url, candidate.url, *options)
        assert result.returncode == 1, result.stderr
        output = result.stdout + result.stderr
        output += "".join((tmp_path / name).read_text() for name in ("out.json", "out.html"))
        for canary in (CONTROL_KEY, CANDIDATE_KEY, *CANARIES.split(", "), "Quinta", "ada@"):
            assert canary not in output
        unmasked_result = await run_compare(
            tmp_path, control.url, candidate.url, *options, "--show-values"
        )
    assert unmasked_result.returncode == 1
    output = unmasked_result.stdout + (tmp_path / "out.json").read_text()
    assert CONTROL_KEY not in output
    assert "ada@example.com" in output
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600


async def test_json_report_has_the_documented_fields(tmp_path: Path) -> None:
    async with open_two_services(lambda _: PlannedResponse({"ok": 1}, 200)) as (control, candidate):
        result = await run_compare(tmp_path, control.url, candidate.url, "reads.txt", "--json", "-")
    report = json.loads(result.stdout)
    assert [*report][:2] == ["format", "version"]
    assert (report["format"], report["version"]) == (FORMAT, VERSION)
    documentation = Path("deploy/compare/README.md").read_text()
    table = documentation.partition("\n| field | content |\n|---|---|\n")[2]
    rows = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(report)
    assert (report["result"], report["exit_code"], result.returncode) == ("different", 1, 1)


@pytest.mark.parametrize("options", [["--json", "-"], ["--show-values"]])
async def test_unencodable_characters_do_not_end_the_command(
    options: list[str], tmp_path: Path
) -> None:
    def respond_unencodable(_request: ReceivedRequest) -> Any:
        return {"ok": True, "amount": "1.00", "\ud800 →": "→"}

    async with open_two_services(respond_unencodable) as (control, candidate):
        result = await run_compare(
            tmp_path,
            control.url,
            candidate.url,
            "reads.txt",
            *options,
            keys={**KEYS, "PYTHONIOENCODING": "iso8859-2"},
        )
    assert (result.returncode, result.stderr) == (1, "")


async def test_failed_run_keeps_earlier_report(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("earlier")
    result = await run_compare(
        tmp_path, "nothing", "http://127.0.0.1:1", "reads.txt", "--json", "out.json"
    )
    assert result.returncode == 2
    assert (tmp_path / "out.json").read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "reads.txt"]


async def test_terminal_output_has_tables_and_no_leftover_progress_bar(
    tmp_path: Path,
) -> None:
    def respond_with_control_characters(_request: ReceivedRequest) -> Any:
        return {"ok": True, "amount": "1.00", "status": "\x1b]0;title\x07\x1b[2J"}

    (tmp_path / "reads.txt").write_text("GET /v1/recipients\n")
    parent_end, child_end = pty.openpty()
    async with open_two_services(respond_with_control_characters) as (control, candidate):
        arguments = ["--control", control.url, "--candidate", candidate.url, "--show-values"]
        process = await asyncio.create_subprocess_exec(
            *(*build_command(), "compare", *arguments, "reads.txt"),
            cwd=tmp_path,
            env=build_environment(**KEYS, COLUMNS="160", TERM="xterm"),
            stdout=child_end,
            stderr=child_end,
        )
        os.close(child_end)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = await asyncio.to_thread(read_until_closed, parent_end)
            assert await process.wait() == 1
    assert re.search(r"(?m)^difference +operation +where ", output)
    assert "1 difference, in 1 of 1 response." in output
    assert "\x1b]0;" not in output
    assert "\x1b[2J" not in output
    assert "Comparing" not in output.rpartition("\x1b[K")[2]


def read_until_closed(terminal: int) -> str:
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as stream:
        while True:
            try:
                parts.append(stream.read(65536))
            except OSError:  # the other end of the terminal is closed
                return b"".join(parts).decode()


def test_help_describes_purpose_and_exit_codes(tmp_path: Path) -> None:
    result = run_installed_command("compare", "--help", folder=tmp_path).stdout
    for phrase in ("CONTROL_API_KEY", "--allow-writes", "--html", "Exit code 0", "HAR"):
        assert phrase in result
