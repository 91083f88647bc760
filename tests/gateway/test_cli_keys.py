from __future__ import annotations

import asyncio
import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from gateway.cli.keys import keys
from tests.operator_commands import run_command
from tests.processes import COMMAND, build_command

API_KEY = "key-of-acme-0123456789abcdefghij"
SECRETS = (API_KEY, "secret-of-acme", "secret-of-bolt", "hunter2")
CommandRunner = Callable[..., Result]


def build_key_line(merchant: str = "acme", **changes: Any) -> str:
    key = {
        "merchant": merchant,
        "environment": "live",
        "api_key": f"key-of-{merchant}-0123456789abcdefghij",
        "access_key": f"{merchant}-access-key-1",
        "secret_key": f"secret-of-{merchant}",
    }
    return json.dumps({**key, **changes})


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(
        "[environments.live]\n"
        'base_url = "http://127.0.0.1:1"\n'
        "[state]\n"
        f'url = "sqlite:///{tmp_path}/gateway.db"\n'
        f'encryption_key_file = "{tmp_path}/gateway.key"\n'
    )
    return path


@pytest.fixture
def run_keys_command(config_file: Path) -> CommandRunner:
    def run_command(*arguments: str, stdin: str = "", code: int = 0) -> Result:
        result = CliRunner().invoke(keys, [*arguments, "--config", str(config_file)], input=stdin)
        assert result.exit_code == code, result.output
        for secret in SECRETS:
            assert secret not in result.output
        if code == 2:
            assert result.stdout == ""
            assert result.stderr.startswith("Error: ")
            assert result.stderr.count("\n") == 1
        return result

    return run_command


# import


def test_import_reports_count_and_tenants(run_keys_command: CommandRunner) -> None:
    second = build_key_line(api_key="another-of-acme-0123456789abcdef")
    result = run_keys_command(
        "import", "-", stdin="\n".join([build_key_line(), second, build_key_line("bolt")])
    )
    assert (
        result.stdout
        == "Imported 3 keys (3 new, 0 changed, 0 unchanged): 2 of acme live, 1 of bolt live\n"
    )
    second_import = run_keys_command("import", "-", stdin=build_key_line())
    assert (
        second_import.stdout == "Imported 1 key (0 new, 0 changed, 1 unchanged): 1 of acme live\n"
    )
    lines = "\n".join(build_key_line(f"m{number:02}") for number in range(30))
    many = run_keys_command("import", "-", stdin=lines)
    assert many.stdout.endswith(", 1 of m09 live, … and 20 more\n"), many.stdout


def test_import_of_invalid_line_names_it_and_imports_nothing(
    run_keys_command: CommandRunner,
) -> None:
    invalid_line = build_key_line("bolt", requests_per_hour="hunter2")
    result = run_keys_command(
        "import", "-", stdin=f"{build_key_line()}\n\n{invalid_line}\n", code=2
    )
    assert "line 3: requests_per_hour: " in result.stderr
    assert "nothing was imported" in result.stderr
    run_keys_command("import", "-", stdin=build_key_line())
    assert len(json.loads(run_keys_command("list", "--json").stdout)["keys"]) == 1


def test_import_names_the_misspelt_field_before_the_missing_one(
    run_keys_command: CommandRunner,
) -> None:
    line = json.loads(build_key_line())
    line["enviroment"] = line.pop("environment")
    line.pop("access_key")
    result = run_keys_command("import", "-", stdin=json.dumps(line), code=2)
    assert (
        "line 1: enviroment: unknown field; did you mean environment?; access_key: missing; "
        in (result.stderr)
    )


def test_import_for_unconfigured_environment_warns(run_keys_command: CommandRunner) -> None:
    result = run_keys_command("import", "-", stdin=build_key_line(environment="sandbox"))
    assert "[environments.sandbox] is not configured" in result.stderr


def test_revoked_key_is_imported_again_only_with_reactivate(
    run_keys_command: CommandRunner,
) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    run_keys_command("revoke", "acme-live")
    assert "--reactivate" in run_keys_command("import", "-", stdin=build_key_line(), code=2).stderr
    assert (
        "1 changed"
        in run_keys_command("import", "-", "--reactivate", stdin=build_key_line()).stdout
    )


# list


def test_json_list_is_one_document_without_secrets(run_keys_command: CommandRunner) -> None:
    key_settings = {
        "name": "main",
        "requests_per_hour": 50,
        "allowed_ips": ["10.0.0.1", "2001:db8::/32"],
    }
    run_keys_command("import", "-", stdin=build_key_line(**key_settings))
    (key,) = json.loads(run_keys_command("list", "--json").stdout)["keys"]
    assert key.pop("created_at").endswith("Z")
    assert key == {
        "name": "main",
        "prefix": "key-of-a",
        "merchant": "acme",
        "environment": "live",
        "access_key_prefix": "acme",
        "requests_per_hour": 50,
        "allowed_ips": ["10.0.0.1/32", "2001:db8::/32"],
        "revoked_at": None,
    }


def test_piped_list_is_aligned_text(run_keys_command: CommandRunner) -> None:
    run_keys_command(
        "import",
        "-",
        stdin=f"{build_key_line()}\n{build_key_line('bolt', name='a [red]long[/red] name')}",
    )
    run_keys_command("revoke", "acme-live")
    header_line, acme, bolt = run_keys_command("list").stdout.splitlines()
    assert header_line.split()[:4] == ["name", "key", "merchant", "environment"]
    merchant_column = header_line.index("merchant")
    assert acme[merchant_column:].startswith("acme ")
    assert bolt[merchant_column:].startswith("bolt ")
    assert "key-of-a…" in acme
    assert acme.rstrip().endswith("Z")
    assert bolt.startswith("a [red]long[/red] name ")
    assert bolt.endswith("-")


def test_commands_in_wrong_folder_create_no_database(
    run_keys_command: CommandRunner, tmp_path: Path
) -> None:
    for arguments in (["list"], ["revoke", "x"], ["rotate-secret", "x"], ["verify"]):
        assert "--config" in run_keys_command(*arguments, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.toml"]


# revoke


def test_revoke_accepts_name_or_prefix_and_is_idempotent(run_keys_command: CommandRunner) -> None:
    run_keys_command("import", "-", stdin=f"{build_key_line()}\n{build_key_line('bolt')}")
    assert run_keys_command("revoke", "acme-live").stdout == "Revoked acme-live (acme live)\n"
    assert "already" in run_keys_command("revoke", "acme-live").stdout
    assert run_keys_command("revoke", "key-of-b").stdout == "Revoked bolt-live (bolt live)\n"


def test_ambiguous_prefix_lists_names_and_revokes_nothing(run_keys_command: CommandRunner) -> None:
    run_keys_command("import", "-", stdin=f"{build_key_line()}\n{build_key_line('bolt')}")
    error = run_keys_command("revoke", "key-of", code=2).stderr
    assert "acme-live, bolt-live; use the name" in error
    listed_keys = json.loads(run_keys_command("list", "--json").stdout)["keys"]
    assert [key["revoked_at"] for key in listed_keys] == [None, None]


@pytest.mark.parametrize(
    "unknown_name", ["another-key-than-those-0123456789", "nobody", "", "key-of-acne"]
)
def test_revoke_of_unknown_name_is_refused(
    run_keys_command: CommandRunner, unknown_name: str
) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    assert "no key has this name" in run_keys_command("revoke", unknown_name, code=2).stderr


def test_key_without_a_displayed_prefix_is_found_by_name_only(
    run_keys_command: CommandRunner,
) -> None:
    run_keys_command("import", "-", stdin=build_key_line(api_key="abc"))
    assert "no key has this name" in run_keys_command("revoke", "acne-live", code=2).stderr
    assert run_keys_command("revoke", "acme-live").stdout == "Revoked acme-live (acme live)\n"


# the service


class RecipientListService:
    """Lists the recipients configured for an access key; 401 for an unknown one."""

    def __init__(self) -> None:
        self.accounts: dict[str, list[str]] = {}

    async def handle(self, request: web.Request) -> web.Response:
        assert request.method == "GET"
        access_key = request.headers["Authorization"].split()[1].partition(":")[0]
        if access_key not in self.accounts:
            return web.json_response({"ok": False}, status=401)
        recipients = [{"id": recipient} for recipient in self.accounts[access_key]]
        return web.json_response({"ok": True, "recipients": recipients})


def set_service_port(config: Path, port: int | None) -> None:
    config.write_text(config.read_text().replace("127.0.0.1:1", f"127.0.0.1:{port}"))


@pytest.fixture
async def service(config_file: Path) -> Any:
    service = RecipientListService()
    app = web.Application()
    app.router.add_route("*", "/v1/recipients", service.handle)
    async with TestServer(app) as server:
        set_service_port(config_file, server.port)
        yield service


@pytest.fixture
def run_in_thread(run_keys_command: CommandRunner) -> Callable[..., Any]:
    """Run a command in a thread, so that the service can answer it."""
    return lambda *words, **more: asyncio.to_thread(run_keys_command, *words, **more)


NEW_CREDENTIALS_LINE = json.dumps(
    {"access_key": "new-access-key-1", "secret_key": "secret-hunter2"}
)


async def test_verify_of_valid_credentials_succeeds(
    service: RecipientListService, run_in_thread: Any
) -> None:
    service.accounts = {"acme-access-key-1": ["R-1"], "bolt-access-key-1": []}
    await run_in_thread("import", "-", stdin=f"{build_key_line()}\n{build_key_line('bolt')}")
    result = await run_in_thread("verify")
    assert result.stderr == ""
    header_line, acme, bolt = result.stdout.splitlines()
    assert header_line.split() == ["merchant", "environment", "access", "key", "result"]
    assert acme.split() == ["acme", "live", "acme…", "accepted"]
    assert bolt.endswith("accepted; the account has no recipients, so it cannot be identified")


async def test_verify_finds_shared_account_and_wrong_credentials(
    service: RecipientListService, run_in_thread: Any
) -> None:
    service.accounts = {"acme-access-key-1": ["R-1", "R-2"], "bolt-access-key-1": ["R-2"]}
    await run_in_thread(
        "import",
        "-",
        stdin="\n".join([build_key_line(), build_key_line("bolt"), build_key_line("core")]),
    )
    result = json.loads((await run_in_thread("verify", "--json", code=1)).stdout)
    assert result["ok"] is False
    assert [credentials_check["result"] for credentials_check in result["pairs"]] == [
        "accepted",
        "accepted",
        "refused",
    ]
    assert result["pairs"][0]["keys"] == ["acme-live"]
    assert result["findings"] == [
        "core live: refused, the service answered 401: wrong credentials, base_url, clock or vocabulary",
        "same account under two merchant names: acme live and bolt live",
    ]
    assert (await run_in_thread("verify", "acme-live", "key-of-a")).exit_code == 0
    assert "Finding: core live" in (await run_in_thread("verify", "core-live", code=1)).stdout


async def test_swapped_credentials_never_show_the_secret(
    service: RecipientListService, run_in_thread: Any, config_file: Path
) -> None:
    secret = "a-secret-in-the-wrong-place-0001"
    swapped_credentials = {"access_key": secret, "secret_key": "acme-access-key-1"}
    service.accounts = {"acme-access-key-1": ["R-1"]}
    result = [
        await run_in_thread("import", "-", stdin=build_key_line(**swapped_credentials)),
        await run_in_thread("list"),
        await run_in_thread("list", "--json"),
        await run_in_thread("verify", code=1),
        await run_in_thread("verify", "--json", code=1),
        await run_in_thread(
            "import", "-", stdin=build_key_line("bolt", **swapped_credentials), code=2
        ),
        await run_in_thread(
            "import", "-", stdin=build_key_line(access_key=secret, secret_key="x"), code=2
        ),
        await run_in_thread(
            "rotate-secret", "acme-live", stdin=json.dumps(swapped_credentials), code=1
        ),
        await run_in_thread(
            "rotate-secret", "acme-live", "--no-verify", stdin=json.dumps(swapped_credentials)
        ),
        await run_command(config_file.parent, "doctor", code=1),
        await run_command(config_file.parent, "doctor", "--json", code=1),
    ]
    for run_result in result:
        assert "secret-in-the-wrong" not in run_result.output
    assert "may be swapped" in result[-2].output


async def test_verify_stops_after_the_calls_that_hang(
    config_file: Path, run_in_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.settings.CHECK_TIMEOUT_SECONDS", 0.3)
    writers: list[asyncio.StreamWriter] = []
    request_count = 0

    async def receive_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal request_count
        writers.append(writer)
        # A call may be given up once it is connected, before it is sent.
        request_count += len(await reader.read(1))

    hanging = await asyncio.start_server(receive_request, "127.0.0.1", 0)
    async with hanging:
        set_service_port(config_file, hanging.sockets[0].getsockname()[1])
        lines = [build_key_line(f"m{number}") for number in range(20)]
        await run_in_thread("import", "-", stdin="\n".join(lines))
        result = json.loads((await run_in_thread("verify", "--json", code=1)).stdout)
        for writer in writers:
            writer.close()
    details = [pair["detail"] for pair in result["pairs"]]
    hung = "unreachable, GET /v1/recipients: no answer within 0.3 s"
    not_tried = "unreachable, not tried after a call without an answer"
    assert set(details) == {hung, not_tried}
    assert 0 < request_count <= details.count(hung) < 20


def test_verify_skips_revoked_keys(run_keys_command: CommandRunner) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    run_keys_command("revoke", "acme-live")
    assert json.loads(run_keys_command("verify", "--json").stdout)["pairs"] == []


async def test_rotation_to_credentials_of_same_account_succeeds(
    service: RecipientListService, run_in_thread: Any
) -> None:
    service.accounts = {"acme-access-key-1": ["R-1"], "new-access-key-1": ["R-1", "R-2"]}
    await run_in_thread("import", "-", stdin=build_key_line())
    result = await run_in_thread("rotate-secret", "acme-live", stdin=NEW_CREDENTIALS_LINE)
    assert result.stdout == ("Replaced the credentials of acme live; the new access key is new-…\n")
    assert result.stderr == ""
    listed_keys = json.loads((await run_in_thread("list", "--json")).stdout)["keys"]
    assert [key["access_key_prefix"] for key in listed_keys] == ["new-"]


@pytest.mark.parametrize(
    ("accounts", "reason"),
    [
        ({"acme-access-key-1": ["R-1"], "new-access-key-1": ["R-2"]}, "another account"),
        ({"acme-access-key-1": ["R-1"]}, "refuses the new credentials"),
        ({"new-access-key-1": ["R-1"]}, "refuses the stored credentials"),
    ],
)
async def test_unverified_rotation_requires_no_verify_option(
    service: RecipientListService, run_in_thread: Any, accounts: dict[str, list[str]], reason: str
) -> None:
    service.accounts = accounts
    await run_in_thread("import", "-", stdin=build_key_line())
    assert (
        reason
        in (
            await run_in_thread("rotate-secret", "acme-live", stdin=NEW_CREDENTIALS_LINE, code=1)
        ).stderr
    )
    listed_keys = json.loads((await run_in_thread("list", "--json")).stdout)["keys"]
    assert [key["access_key_prefix"] for key in listed_keys] == ["acme"]
    await run_in_thread("rotate-secret", "acme-live", "--no-verify", stdin=NEW_CREDENTIALS_LINE)
    listed_keys = json.loads((await run_in_thread("list", "--json")).stdout)["keys"]
    assert [key["access_key_prefix"] for key in listed_keys] == ["new-"]


async def test_keys_commands_exit_with_1_on_findings_and_2_on_usage_errors(
    service: RecipientListService, run_in_thread: Any, config_file: Path
) -> None:
    service.accounts = {"acme-access-key-1": ["R-1"], "new-access-key-1": ["R-2"]}
    await run_in_thread("import", "-", stdin=f"{build_key_line()}\n{build_key_line('bolt')}")
    for arguments, code in (
        (["verify", "acme-live"], 0),
        (["verify"], 1),
        (["rotate-secret", "acme-live"], 1),
        (["rotate-secret", "nobody"], 2),
        (["revoke"], 2),
    ):
        process = await asyncio.create_subprocess_exec(
            *build_command(),
            "keys",
            *arguments,
            "--config",
            str(config_file),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate(NEW_CREDENTIALS_LINE.encode())
        assert process.returncode == code, errors
        assert errors.count(b"\n") == (0 if "verify" in arguments else 1)


def test_rotation_without_reachable_service_replaces_nothing(
    run_keys_command: CommandRunner,
) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    result = run_keys_command("rotate-secret", "key-of-a", stdin=NEW_CREDENTIALS_LINE, code=1)
    assert "unreachable" in result.stderr
    assert "nothing was replaced" in result.stderr
    assert "of the same merchant" in result.stderr
    run_keys_command("rotate-secret", "key-of-a", "--no-verify", stdin=NEW_CREDENTIALS_LINE)


@pytest.mark.parametrize(
    ("stdin", "expected_text"),
    [
        ("", "not JSON"),
        ("hunter2", "not JSON"),
        ('{"access_key": "a"}', "secret_key: missing"),
        ('{"access_key": "a", "secret_key": ""}', "secret_key: "),
        ('{"access_key": "a", "secret_key": "b", "more": "hunter2"}', "more: unknown field"),
    ],
)
def test_rotation_to_malformed_credentials_is_refused(
    run_keys_command: CommandRunner, stdin: str, expected_text: str
) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    assert (
        expected_text in run_keys_command("rotate-secret", "acme-live", stdin=stdin, code=2).stderr
    )


def test_rotation_to_access_key_of_another_merchant_is_refused(
    run_keys_command: CommandRunner,
) -> None:
    run_keys_command("import", "-", stdin=f"{build_key_line()}\n{build_key_line('bolt')}")
    used_credentials = json.dumps({"access_key": "bolt-access-key-1", "secret_key": "hunter2"})
    arguments = ("rotate-secret", "acme-live", "--no-verify")
    assert "another merchant" in run_keys_command(*arguments, stdin=used_credentials, code=2).stderr


def test_rotation_prompt_hides_the_secret(
    run_keys_command: CommandRunner, config_file: Path
) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    arguments = ["rotate-secret", "acme-live", "--no-verify", "--config", str(config_file)]
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [*COMMAND, "keys", *arguments])
    terminal_output = b""
    for prompt, answer in (
        (b"Access key: ", b"new-access-key-1\n"),
        (b"Secret key: ", b"hunter2\n"),
    ):
        while prompt not in terminal_output:
            terminal_output += os.read(terminal, 1024)
        os.write(terminal, answer)
    while b"Replaced" not in terminal_output:
        terminal_output += os.read(terminal, 1024)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
    assert b"hunter2" not in terminal_output
    assert b"new-access-key-1" not in terminal_output, "it might be the secret key, swapped"


# new-encryption-key and the configuration


def test_new_encryption_key_creates_file_once_and_adds_on_request(
    run_keys_command: CommandRunner, tmp_path: Path
) -> None:
    file = tmp_path / "gateway.key"
    assert run_keys_command("new-encryption-key").stdout == f"Created {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "--add" in run_keys_command("new-encryption-key", code=2).stderr
    run_keys_command("import", "-", stdin=build_key_line())
    text_before = file.read_text()
    add_output = run_keys_command("new-encryption-key", "--add").output
    assert text_before.split()[1] not in add_output
    assert "restart every gateway that uses this state" in add_output
    assert file.read_text().startswith(text_before)
    assert "acme-live" in run_keys_command("list").stdout


def test_adding_encryption_key_without_file_is_an_error(run_keys_command: CommandRunner) -> None:
    assert "there is no key file" in run_keys_command("new-encryption-key", "--add", code=2).stderr


def test_default_configuration_is_gateway_toml_or_environment(
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_keys_command: CommandRunner,
    tmp_path: Path,
) -> None:
    run_keys_command("import", "-", stdin=build_key_line())
    monkeypatch.chdir(tmp_path)
    assert "acme-live" in CliRunner().invoke(keys, ["list"]).stdout
    config_file.unlink()
    monkeypatch.setenv("PAYOUT_GATEWAY_STATE__URL", "sqlite:///gateway.db")
    assert "acme-live" in CliRunner().invoke(keys, ["list"]).stdout
