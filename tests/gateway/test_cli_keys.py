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
from tests.operating import says

API_KEY = "key-of-acme-0123456789abcdefghij"
SECRETS = (API_KEY, "secret-of-acme", "secret-of-bolt", "hunter2")
COMMAND = [sys.executable, "-c", "from gateway.cli import main; main()", "keys"]
Run = Callable[..., Result]


def line(merchant: str = "acme", **more: Any) -> str:
    key = {
        "merchant": merchant,
        "environment": "live",
        "api_key": f"key-of-{merchant}-0123456789abcdefghij",
        "access_key": f"{merchant}-access-key-1",
        "secret_key": f"secret-of-{merchant}",
    }
    return json.dumps({**key, **more})


@pytest.fixture
def config(tmp_path: Path) -> Path:
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
def run(config: Path) -> Run:
    def run(*words: str, stdin: str = "", code: int = 0) -> Result:
        done = CliRunner().invoke(keys, [*words, "--config", str(config)], input=stdin)
        assert done.exit_code == code, done.output
        for secret in SECRETS:
            assert secret not in done.output
        if code == 2:
            assert done.stdout == ""
            assert done.stderr.startswith("Error: ")
            assert done.stderr.count("\n") == 1
        return done

    return run


# import


def test_import_says_how_many_keys_and_for_whom(run: Run) -> None:
    second = line(api_key="another-of-acme-0123456789abcdef")
    done = run("import", "-", stdin="\n".join([line(), second, line("bolt")]))
    assert (
        done.stdout
        == "Imported 3 keys (3 new, 0 changed, 0 unchanged): 2 of acme live, 1 of bolt live\n"
    )
    again = run("import", "-", stdin=line())
    assert again.stdout == "Imported 1 key (0 new, 0 changed, 1 unchanged): 1 of acme live\n"


def test_import_reads_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text(line())
    assert "Imported 1 key" in run("import", str(tmp_path / "keys.jsonl")).stdout


def test_import_of_a_wrong_line_names_it_and_imports_nothing(run: Run) -> None:
    wrong = line("bolt", requests_per_hour="hunter2")
    done = run("import", "-", stdin=f"{line()}\n\n{wrong}\n", code=2)
    assert "line 3: requests_per_hour: " in done.stderr
    assert "nothing was imported" in done.stderr
    run("import", "-", stdin=line())
    assert len(json.loads(run("list", "--json").stdout)["keys"]) == 1


def test_import_for_an_environment_that_is_not_configured_warns(run: Run) -> None:
    done = run("import", "-", stdin=line(environment="sandbox"))
    assert "[environments.sandbox] is not configured" in done.stderr


def test_a_revoked_key_is_imported_again_only_with_reactivate(run: Run) -> None:
    run("import", "-", stdin=line())
    run("revoke", "acme-live")
    assert "--reactivate" in run("import", "-", stdin=line(), code=2).stderr
    assert "1 changed" in run("import", "-", "--reactivate", stdin=line()).stdout


# list


def test_list_as_json_is_one_document_with_everything_but_secrets(run: Run) -> None:
    more = {"name": "main", "requests_per_hour": 50, "allowed_ips": ["10.0.0.1", "2001:db8::/32"]}
    run("import", "-", stdin=line(**more))
    (key,) = json.loads(run("list", "--json").stdout)["keys"]
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


def test_list_in_a_pipe_is_aligned_text(run: Run) -> None:
    run("import", "-", stdin=f"{line()}\n{line('bolt', name='a [red]long[/red] name')}")
    run("revoke", "acme-live")
    heads, acme, bolt = run("list").stdout.splitlines()
    assert heads.split()[:4] == ["name", "key", "merchant", "environment"]
    place = heads.index("merchant")
    assert acme[place:].startswith("acme ")
    assert bolt[place:].startswith("bolt ")
    assert "key-of-a…" in acme
    assert acme.rstrip().endswith("Z")
    assert bolt.startswith("a [red]long[/red] name ")
    assert bolt.endswith("-")


def test_list_on_a_terminal_is_a_table(run: Run, config: Path) -> None:
    run("import", "-", stdin=line(name="[red]x"))
    ours, theirs = pty.openpty()
    command = [*COMMAND, "list", "--config", str(config)]
    subprocess.run(
        command, stdout=theirs, stderr=theirs, check=True, env={**os.environ, "COLUMNS": "200"}
    )
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert "┃" in shown
    assert "[red]x" in shown


def test_no_keys_is_an_empty_list(run: Run) -> None:
    run("import", "-", stdin="\n", code=2)
    run("import", "-", stdin=line())
    assert run("list").stdout.count("\n") == 2


def test_commands_in_the_wrong_folder_make_no_database(run: Run, tmp_path: Path) -> None:
    for words in (["list"], ["revoke", "x"], ["rotate-secret", "x"], ["verify"]):
        assert "--config" in run(*words, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.toml"]


# revoke


def test_revoke_takes_a_name_or_a_beginning_and_may_be_repeated(run: Run) -> None:
    run("import", "-", stdin=f"{line()}\n{line('bolt')}")
    assert run("revoke", "acme-live").stdout == "Revoked acme-live (acme live)\n"
    assert "already" in run("revoke", "acme-live").stdout
    assert run("revoke", "key-of-b").stdout == "Revoked bolt-live (bolt live)\n"


def test_an_ambiguous_beginning_lists_the_names_and_revokes_nothing(run: Run) -> None:
    run("import", "-", stdin=f"{line()}\n{line('bolt')}")
    assert "acme-live, bolt-live" in run("revoke", "key-of", code=2).stderr
    listed = json.loads(run("list", "--json").stdout)["keys"]
    assert [key["revoked_at"] for key in listed] == [None, None]


@pytest.mark.parametrize("word", ["another-key-than-those-0123456789", "nobody", ""])
def test_what_means_no_key_is_not_repeated_because_it_might_be_one(run: Run, word: str) -> None:
    run("import", "-", stdin=line())
    assert "no key has this name" in run("revoke", word, code=2).stderr


# the service


class Service:
    """Lists the recipients configured for an access key; 401 for an unknown one."""

    def __init__(self) -> None:
        self.accounts: dict[str, list[str]] = {}

    async def answer(self, request: web.Request) -> web.Response:
        assert request.method == "GET"
        access_key = request.headers["Authorization"].split()[1].partition(":")[0]
        if access_key not in self.accounts:
            return web.json_response({"ok": False}, status=401)
        found = [{"id": recipient} for recipient in self.accounts[access_key]]
        return web.json_response({"ok": True, "recipients": found})


def point_at(config: Path, port: int | None) -> None:
    config.write_text(config.read_text().replace("127.0.0.1:1", f"127.0.0.1:{port}"))


@pytest.fixture
async def service(config: Path) -> Any:
    service = Service()
    app = web.Application()
    app.router.add_route("*", "/v1/recipients", service.answer)
    async with TestServer(app) as server:
        point_at(config, server.port)
        yield service


@pytest.fixture
def aside(run: Run) -> Callable[..., Any]:
    """Run a command in a thread, so that the service can answer it."""
    return lambda *words, **more: asyncio.to_thread(run, *words, **more)


NEW = json.dumps({"access_key": "new-access-key-1", "secret_key": "hunter2"})


async def test_verify_of_good_pairs_ends_well(service: Service, aside: Any) -> None:
    service.accounts = {"acme-access-key-1": ["R-1"], "bolt-access-key-1": []}
    await aside("import", "-", stdin=f"{line()}\n{line('bolt')}")
    done = await aside("verify")
    assert done.stderr == ""
    heads, acme, bolt = done.stdout.splitlines()
    assert heads.split() == ["merchant", "environment", "access", "key", "result"]
    assert acme.split() == ["acme", "live", "acme…", "accepted"]
    assert bolt.endswith("accepted; the account has no recipients, so it cannot be identified")


async def test_verify_finds_one_account_under_two_names_and_wrong_pairs(
    service: Service, aside: Any
) -> None:
    service.accounts = {"acme-access-key-1": ["R-1", "R-2"], "bolt-access-key-1": ["R-2"]}
    await aside("import", "-", stdin="\n".join([line(), line("bolt"), line("core")]))
    done = json.loads((await aside("verify", "--json", code=1)).stdout)
    assert done["ok"] is False
    assert [pair["result"] for pair in done["pairs"]] == ["accepted", "accepted", "refused"]
    assert done["pairs"][0]["keys"] == ["acme-live"]
    assert done["findings"] == [
        "core live: refused, the service answered 401: wrong credentials, base_url, clock or vocabulary",
        "same account under two merchant names: acme live and bolt live",
    ]
    assert (await aside("verify", "acme-live", "key-of-a")).exit_code == 0
    assert "Finding: core live" in (await aside("verify", "core-live", code=1)).stdout


async def test_swapped_pair_never_shows_its_secret(
    service: Service, aside: Any, config: Path
) -> None:
    secret = "a-secret-in-the-wrong-place-0001"
    swapped = {"access_key": secret, "secret_key": "acme-access-key-1"}
    service.accounts = {"acme-access-key-1": ["R-1"]}
    said = [
        await aside("import", "-", stdin=line(**swapped)),
        await aside("list"),
        await aside("list", "--json"),
        await aside("verify", code=1),
        await aside("verify", "--json", code=1),
        await aside("import", "-", stdin=line("bolt", **swapped), code=2),
        await aside("import", "-", stdin=line(access_key=secret, secret_key="x"), code=2),
        await aside("rotate-secret", "acme-live", stdin=json.dumps(swapped), code=1),
        await aside("rotate-secret", "acme-live", "--no-verify", stdin=json.dumps(swapped)),
        await says(config.parent, "doctor", code=1),
        await says(config.parent, "doctor", "--json", code=1),
    ]
    for one in said:
        assert "secret-in-the-wrong" not in one.output
    assert "not swapped" in said[-2].output


def test_verify_of_a_service_that_cannot_be_reached_is_a_finding(run: Run) -> None:
    run("import", "-", stdin=line())
    assert "Finding: acme live: unreachable" in run("verify", code=1).stdout


def test_verify_leaves_revoked_keys_out(run: Run) -> None:
    run("import", "-", stdin=line())
    run("revoke", "acme-live")
    assert json.loads(run("verify", "--json").stdout)["pairs"] == []


async def test_rotation_to_a_pair_of_the_same_account(service: Service, aside: Any) -> None:
    service.accounts = {"acme-access-key-1": ["R-1"], "new-access-key-1": ["R-1", "R-2"]}
    await aside("import", "-", stdin=line())
    done = await aside("rotate-secret", "acme-live", stdin=NEW)
    assert done.stdout == ("Replaced the credentials of acme live; the new access key is new-…\n")
    assert done.stderr == ""
    listed = json.loads((await aside("list", "--json")).stdout)["keys"]
    assert [key["access_key_prefix"] for key in listed] == ["new-"]


@pytest.mark.parametrize(
    ("accounts", "why"),
    [
        ({"acme-access-key-1": ["R-1"], "new-access-key-1": ["R-2"]}, "another account"),
        ({"acme-access-key-1": ["R-1"]}, "refuses the new credentials"),
        ({"new-access-key-1": ["R-1"]}, "refuses the stored credentials"),
    ],
)
async def test_rotation_that_cannot_be_right_replaces_nothing_unless_told(
    service: Service, aside: Any, accounts: dict[str, list[str]], why: str
) -> None:
    service.accounts = accounts
    await aside("import", "-", stdin=line())
    assert why in (await aside("rotate-secret", "acme-live", stdin=NEW, code=1)).stderr
    listed = json.loads((await aside("list", "--json")).stdout)["keys"]
    assert [key["access_key_prefix"] for key in listed] == ["acme"]
    await aside("rotate-secret", "acme-live", "--no-verify", stdin=NEW)
    listed = json.loads((await aside("list", "--json")).stdout)["keys"]
    assert [key["access_key_prefix"] for key in listed] == ["new-"]


async def test_the_whole_command_ends_with_1_on_findings_and_2_on_mistakes(
    service: Service, aside: Any, config: Path
) -> None:
    service.accounts = {"acme-access-key-1": ["R-1"], "new-access-key-1": ["R-2"]}
    await aside("import", "-", stdin=f"{line()}\n{line('bolt')}")
    for words, code in (
        (["verify", "acme-live"], 0),
        (["verify"], 1),
        (["rotate-secret", "acme-live"], 1),
        (["rotate-secret", "nobody"], 2),
        (["revoke"], 2),
    ):
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            "--config",
            str(config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate(NEW.encode())
        assert process.returncode == code, errors
        assert errors.count(b"\n") == (0 if "verify" in words else 1)


def test_rotation_with_a_service_out_of_reach_replaces_nothing(run: Run) -> None:
    run("import", "-", stdin=line())
    done = run("rotate-secret", "key-of-a", stdin=NEW, code=1)
    assert "unreachable" in done.stderr
    assert "nothing was replaced" in done.stderr
    run("rotate-secret", "key-of-a", "--no-verify", stdin=NEW)


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
def test_rotation_to_what_is_no_pair_is_refused(run: Run, stdin: str, expected_text: str) -> None:
    run("import", "-", stdin=line())
    assert expected_text in run("rotate-secret", "acme-live", stdin=stdin, code=2).stderr


def test_rotation_to_another_merchants_access_key_is_refused(run: Run) -> None:
    run("import", "-", stdin=f"{line()}\n{line('bolt')}")
    taken = json.dumps({"access_key": "bolt-access-key-1", "secret_key": "hunter2"})
    words = ("rotate-secret", "acme-live", "--no-verify")
    assert "another merchant" in run(*words, stdin=taken, code=2).stderr


def test_a_terminal_is_asked_for_the_pair_and_does_not_show_the_secret(
    run: Run, config: Path
) -> None:
    run("import", "-", stdin=line())
    words = ["rotate-secret", "acme-live", "--no-verify", "--config", str(config)]
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [*COMMAND, *words])
    shown = b""
    for asked, answer in (
        (b"Access key: ", b"new-access-key-1\n"),
        (b"Secret key: ", b"hunter2\n"),
    ):
        while asked not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, answer)
    while b"Replaced" not in shown:
        shown += os.read(terminal, 1024)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
    assert b"hunter2" not in shown
    assert b"new-access-key-1" not in shown, "it might be the secret key, swapped"


# new-encryption-key and the configuration


def test_a_new_encryption_key_is_made_once_and_added_on_purpose(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "gateway.key"
    assert run("new-encryption-key").stdout == f"Made {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "--add" in run("new-encryption-key", code=2).stderr
    run("import", "-", stdin=line())
    before = file.read_text()
    added = run("new-encryption-key", "--add").output
    assert before.split()[1] not in added
    assert "restart every gateway that uses this state" in added
    assert file.read_text().startswith(before)
    assert "acme-live" in run("list").stdout


def test_adding_a_key_to_no_file_is_a_mistake(run: Run) -> None:
    assert "there is no key file" in run("new-encryption-key", "--add", code=2).stderr


def test_a_wrong_configuration_is_one_line(run: Run, config: Path) -> None:
    config.write_text("[stat]\nx = 1\n")
    assert "stat: unknown key" in run("list", code=2).stderr


def test_a_lost_key_file_is_one_line(run: Run, tmp_path: Path) -> None:
    run("import", "-", stdin=line())
    (tmp_path / "gateway.key").unlink()
    assert "there is no key file" in run("list", code=2).stderr


def test_without_config_gateway_toml_is_read_and_else_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    run("import", "-", stdin=line())
    monkeypatch.chdir(tmp_path)
    assert "acme-live" in CliRunner().invoke(keys, ["list"]).stdout
    config.unlink()
    monkeypatch.setenv("PAYOUT_GATEWAY_STATE__URL", "sqlite:///gateway.db")
    assert "acme-live" in CliRunner().invoke(keys, ["list"]).stdout
