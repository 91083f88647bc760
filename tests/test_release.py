"""Wheel and sdist are built, installed in a clean environment and started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import environment

ROOT = Path(__file__).parents[1]
UNREACHED = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError"
)


def done(*words: str, folder: Path) -> str:
    """Runs a program without this checkout on its path; what it said."""
    own = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    run = subprocess.run(
        words, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr + run.stdout
    return run.stdout


def build(source: Path, *targets: str, into: Path) -> None:
    words = [word for target in targets for word in ("-t", target)]
    done(sys.executable, "-m", "hatchling", "build", "-d", str(into), *words, folder=source)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, "wheel", "sdist", into=folder)
    return folder


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def the(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_the_wheel_has_every_file_of_both_packages(released: Path) -> None:
    there = contents(the(released, "*.whl"))
    wanted = {
        str(path.relative_to(ROOT)): path
        for package in ("gateway", "mappings")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in wanted} >= {".py", ".j2", ".css", ".lua", ".json"}
    assert {name for name in there if ".dist-info/" not in name} == set(wanted)
    assert all(there[name] == path.read_bytes() for name, path in wanted.items())
    licences = [name for name in there if name.endswith("licenses/LICENSE")]
    assert len(licences) == 1


def test_the_sdist_makes_the_same_wheel_and_can_be_tested(released: Path, tmp_path: Path) -> None:
    with tarfile.open(the(released, "*.tar.gz")) as packed:
        packed.extractall(tmp_path, filter="data")
    source = the(tmp_path, "payout_gateway-*")
    for name in ("tests/test_release.py", "Makefile", "requirements-dev.lock", "deploy/runbook.md"):
        assert (source / name).is_file(), name
    build(source, "wheel", into=tmp_path / "again")
    again = contents(the(tmp_path / "again", "*.whl"))
    assert again == contents(the(released, "*.whl"))


@pytest.fixture(scope="module")
def installed(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of an environment that has the wheel and what it needs, and no more."""
    folder = tmp_path_factory.mktemp("clean")
    done(sys.executable, "-m", "venv", "--without-pip", "env", folder=folder)
    pins = re.findall(
        r"^[\w.-]+==[^\s;\\]+", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    (folder / "pins").write_text("\n".join(pins))
    wheel = str(the(released, "*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "env/bin/python"), "install"]
    options = ["--no-compile", "--disable-pip-version-check", "--retries", "1", "--timeout", "10"]
    run = subprocess.run(
        [*pip, *options, "--constraint", "pins", wheel],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if run.returncode and UNREACHED.search(run.stderr + run.stdout) and not os.environ.get("CI"):
        pytest.skip(
            "no package index can be reached: the wheel was not installed (CI=1: a failure)"
        )
    assert run.returncode == 0, run.stderr
    return folder / "env/bin"


def test_what_is_installed_says_what_it_can_and_starts_its_demo(
    installed: Path, tmp_path: Path
) -> None:
    """One test, as several would be installed for by several workers. With the state's migrations,
    the limit's bounds and the tables of countries.
    """
    where = "import gateway; print(gateway.__file__)"
    said = done(str(installed / "python"), "-c", where, folder=tmp_path)
    assert said.startswith(str(installed.parent)), "it is not this checkout"
    assert "Run the gateway." in done(str(installed / "payout-gateway"), "--help", folder=tmp_path)
    ports = {"PAYOUT_GATEWAY_SERVER__PORT": "0", "PAYOUT_GATEWAY_SERVER__ADMIN_PORT": "0"}
    own = {name: value for name, value in environment(**ports).items() if name != "PYTHONPATH"}
    running = subprocess.Popen(
        [str(installed / "payout-gateway"), "serve", "--demo"],
        cwd=tmp_path, env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = next(_addresses(running))
        for path in ("/v1/recipients", "/v1/profile/balances", "/v1/geography/countries/CA"):
            asked = urllib.request.Request(url + path, headers={"X-API-Key": "demo-api-key"})
            with urllib.request.urlopen(asked, timeout=10) as answer:
                assert json.load(answer)["ok"] is True
        running.terminate()
        assert running.wait(10) == 0
    finally:
        running.kill()
        running.communicate()


def _addresses(running: subprocess.Popen[str]) -> Iterator[str]:
    assert running.stdout
    for line in running.stdout:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/v1/", line):
            yield found[1]
