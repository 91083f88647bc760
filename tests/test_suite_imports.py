"""The black-box suites import no internals of the product, so that a redesign leaves them alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = (
    "test_cases.py",
    "test_cases_in_process.py",
    "test_kills.py",
    "gateway_forker.py",  # a process of test_kills
    "test_simulation.py",
    "simulation/*.py",
    "proof/*.py",
    "mutations/*.py",
)
PUBLIC = (
    *("gateway.simulator", "gateway.compare", "gateway.config.settings", "mappings.OPERATIONS"),
    "gateway.storage.sqlite_driver",
)
ASSEMBLY = {
    "tests/running_gateway.py": "runs a gateway",
    "tests/openapi_document.py": "describes the legacy interface by the shapes of mappings/",
    "tests/request_examples.py": "puts examples into the configured vocabulary",
    "tests/kill_points.py": "kills a gateway between two of its steps",
    "tests/state.py": "sets up and reads its state",
    "tests/gateway/storage/conftest.py": "creates databases",
    "tests/assembly.py": "assembles a gateway without sockets for the cases in process",
    "tests/simulation/assembly.py": "assembles a gateway without sockets",
    "tests/simulation/database.py": "is the database of such a gateway",
    "tests/simulation/postgresql.py": "is that database on PostgreSQL",
    "tests/simulation/mutations.py": "plants mistakes in the product",
    "tests/mutations/field_tables.py": "puts a fault into a field table of mappings/",
    "tests/mutations/line_coverage.py": "traces the lines of mappings/",
    "tests/mutations/test_mutations.py": "checks that a table of mappings/ is replaced and restored",
}
"""The only modules of these suites that may import anything else of the product, and what for."""


def imported_names(file: Path) -> Iterator[str]:
    """Full names of what a module imports, inside of functions too."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_module(name: str) -> Path | None:
    """The file of ``tests.a.b``, or of ``tests.a.b.name``."""
    for dotted in (name, name.rpartition(".")[0]):
        file = ROOT / f"{dotted.replace('.', '/')}.py"
        if file.is_file():
            return file
    return None


def list_modules() -> list[str]:
    """The suites' modules, and those of tests/ that they import, to the last."""
    modules: set[Path] = set()
    pending_files = [file for suite in SUITES for file in (ROOT / "tests").glob(suite)]
    while pending_files:
        file = pending_files.pop()
        if file not in modules:
            modules.add(file)
            names = [name for name in imported_names(file) if name.startswith("tests.")]
            pending_files += [module for name in names if (module := find_module(name))]
    return sorted(str(file.relative_to(ROOT)) for file in modules)


def list_internals(file: Path) -> list[str]:
    return [
        name
        for name in imported_names(file)
        if name.partition(".")[0] in ("gateway", "mappings")
        and (
            not any(f"{name}.".startswith(f"{public}.") for public in PUBLIC)
            or any(part.startswith("_") for part in name.split("."))
        )
    ]


def test_only_assembly_modules_import_internals_and_each_is_used() -> None:
    modules = list_modules()
    internals = {module: names for module in modules if (names := list_internals(ROOT / module))}
    assert {module: names for module, names in internals.items() if module not in ASSEMBLY} == {}
    assert ASSEMBLY.keys() - internals.keys() == set()
