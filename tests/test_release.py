"""Wheel and sdist are built, installed in a clean environment and started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.processes import build_environment

ROOT = Path(__file__).parents[1]


def run_successfully(*arguments: str, folder: Path) -> str:
    """Runs a program without this checkout on its path; returns its output."""
    environment = {
        name: value for name, value in build_environment().items() if name != "PYTHONPATH"
    }
    run = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr + run.stdout
    return run.stdout


def build_distribution(source: Path, *targets: str, output_folder: Path) -> None:
    target_options = [argument for target in targets for argument in ("-t", target)]
    run_successfully(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        str(output_folder),
        *target_options,
        folder=source,
    )


@pytest.fixture(scope="module")
def build_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build_distribution(ROOT, "wheel", "sdist", output_folder=folder)
    return folder


def read_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def find_one(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def test_wheel_contains_both_packages(build_release: Path) -> None:
    wheel_files = read_wheel(find_one(build_release, "*.whl"))
    expected_files = {
        str(path.relative_to(ROOT)): path
        for package in ("gateway", "mappings")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in expected_files} >= {".py", ".j2", ".css", ".lua", ".json"}
    assert {name for name in wheel_files if ".dist-info/" not in name} == set(expected_files)
    assert all(wheel_files[name] == path.read_bytes() for name, path in expected_files.items())
    licences = [name for name in wheel_files if name.endswith("licenses/LICENSE")]
    assert len(licences) == 1


def test_sdist_builds_the_same_wheel_and_contains_tests(
    build_release: Path, tmp_path: Path
) -> None:
    with tarfile.open(find_one(build_release, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    source = find_one(tmp_path, "payout_gateway-*")
    for name in ("tests/test_release.py", "Makefile", "requirements-dev.lock", "deploy/runbook.md"):
        assert (source / name).is_file(), name
    build_distribution(source, "wheel", output_folder=tmp_path / "again")
    rebuilt_files = read_wheel(find_one(tmp_path / "again", "*.whl"))
    assert rebuilt_files == read_wheel(find_one(build_release, "*.whl"))


def list_dependencies(wheel: Path) -> dict[str, Distribution]:
    """Lists what pip installs with the wheel: the distributions that it requires, and that they require."""
    metadata = next(data for name, data in read_wheel(wheel).items() if name.endswith("/METADATA"))
    pending = [
        Requirement(line.partition(":")[2])
        for line in metadata.decode().splitlines()
        if line.startswith("Requires-Dist:")
    ]
    found: dict[str, Distribution] = {}
    seen = set[str]()
    while pending:
        requirement = pending.pop()
        extras = requirement.extras or {""}
        if str(requirement) in seen or not (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            continue
        seen.add(str(requirement))
        installed = distribution(requirement.name)
        found[canonicalize_name(requirement.name)] = installed
        assert requirement.specifier.contains(installed.version, prereleases=True), requirement
        for line in installed.requires or ():
            other = Requirement(line)
            if any(other.marker is None or other.marker.evaluate({"extra": e}) for e in extras):
                other.marker = None
                pending.append(other)
    return found


@pytest.fixture(scope="module")
def install_wheel(build_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands in an environment with the wheel and its dependencies only.

    These are linked from the environment of the tests, in which pip has put them in half a minute.
    """
    folder = tmp_path_factory.mktemp("clean")
    run_successfully(sys.executable, "-m", "venv", "--without-pip", "env", folder=folder)
    (packages,) = folder.glob("env/lib/python*/site-packages")
    wheel = find_one(build_release, "*.whl")
    dependencies = list_dependencies(wheel)
    assert len(dependencies) > 20
    for dependency in dependencies.values():
        for name in {file.parts[0] for file in dependency.files or ()} - {"..", "__pycache__"}:
            (packages / name).symlink_to(str(dependency.locate_file(name)))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "env/bin/python"), "install"]
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    run_successfully(*pip, *options, str(wheel), folder=folder)
    return folder / "env/bin"


def test_installed_wheel_prints_help_and_runs_the_demo(install_wheel: Path, tmp_path: Path) -> None:
    """One test, as several would be installed for by several workers. With the state's migrations,
    the limit's bounds and the tables of countries.
    """
    script = "import gateway; print(gateway.__file__)"
    output = run_successfully(str(install_wheel / "python"), "-c", script, folder=tmp_path)
    assert output.startswith(str(install_wheel.parent)), "it is not this checkout"
    assert "Run the gateway." in run_successfully(
        str(install_wheel / "payout-gateway"), "--help", folder=tmp_path
    )
    ports = {"PAYOUT_GATEWAY_SERVER__PORT": "0", "PAYOUT_GATEWAY_SERVER__ADMIN_PORT": "0"}
    environment = {
        name: value for name, value in build_environment(**ports).items() if name != "PYTHONPATH"
    }
    running = subprocess.Popen(
        [str(install_wheel / "payout-gateway"), "serve", "--demo"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = next(_iterate_addresses(running))
        for path in ("/v1/recipients", "/v1/profile/balances", "/v1/geography/countries/CA"):
            request = urllib.request.Request(url + path, headers={"X-API-Key": "demo-api-key"})
            with urllib.request.urlopen(request, timeout=10) as response:
                assert json.load(response)["ok"] is True
        running.terminate()
        assert running.wait(10) == 0
    finally:
        running.kill()
        running.communicate()


def _iterate_addresses(running: subprocess.Popen[str]) -> Iterator[str]:
    assert running.stdout
    for line in running.stdout:
        if match := re.search(r"(http://127\.0\.0\.1:\d+)/v1/", line):
            yield match[1]
