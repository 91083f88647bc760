"""`init` and `migrate`: the first files of an installation, and its tables."""

from __future__ import annotations

import errno
import sqlite3
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import gateway
from gateway.config.settings import load_settings
from gateway.operator.preflight import check_settings_are_runnable
from gateway.storage.key_file import read_key_file
from gateway.storage.migrate import find_newest_revision

URL = "https://payouts.service.example"


@pytest.fixture(autouse=True)
def enter_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gateway, arguments)


def list_modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_init_writes_a_runnable_configuration_for_its_owner_only() -> None:
    result = run("init", "--base-url", URL)
    assert result.exit_code == 0, result.output
    assert list_modes(Path()) == dict.fromkeys(
        ("gateway.toml", "gateway.key", "admin-token"), 0o600
    )
    settings = load_settings(Path("gateway.toml"))
    check_settings_are_runnable(settings)
    assert settings.environments.sandbox
    assert settings.environments.sandbox.base_url == URL
    token = settings.server.admin_token.get_secret_value()
    assert token == Path("admin-token").read_text()
    assert token not in result.output
    assert read_key_file(Path("gateway.key"))
    assert "keys import" in result.output
    assert "doctor" in result.output


@pytest.mark.parametrize("name", ["gateway.toml", "gateway.key", "admin-token"])
def test_init_overwrites_nothing(name: str) -> None:
    Path("here").mkdir()
    Path("here", name).write_text("mine")
    result = run("init", "here")
    assert result.exit_code == 2
    assert f"here/{name} already exists" in result.output
    assert {path.name: path.read_text() for path in Path("here").iterdir()} == {name: "mine"}


def test_init_on_a_full_disk_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("os.fsync", refuse)
        result = run("init", "here")
    assert result.exit_code == 2
    assert "No space left on device" in result.output
    assert list(Path("here").iterdir()) == []
    assert run("init", "here").exit_code == 0


@pytest.mark.parametrize(
    "url", ["https://service.example/v1", "service.example", "http://x.example"]
)
def test_init_refuses_an_unusable_address(url: str) -> None:
    result = run("init", "--base-url", url)
    assert result.exit_code == 2
    assert "--base-url" in result.output
    assert ("edit gateway.toml" in result.output) == (url == "http://x.example")
    assert list(Path().iterdir()) == []


def test_command_without_configuration_names_it() -> None:
    assert "there is no gateway.toml in this directory" in run("keys", "list").output
    run("init")
    output = run("keys", "list").output
    assert "there is no gateway.toml" not in output
    assert "there is no database" in output


def test_migrate_creates_the_tables_once() -> None:
    run("init")
    revision = find_newest_revision()
    first = run("migrate")
    assert (first.exit_code, first.output) == (
        0,
        f"Created the tables of gateway.db (revision {revision})\n",
    )
    second = run("migrate")
    assert (second.exit_code, "up to date" in second.output) == (0, True)


def test_migrate_refuses_a_database_of_a_newer_version() -> None:
    run("init")
    run("migrate")
    with sqlite3.connect("gateway.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    result = run("migrate")
    assert result.exit_code == 2
    assert "newer version" in result.output
