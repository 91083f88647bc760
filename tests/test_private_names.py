"""The product uses no private name of aiohttp: those change without notice, in any release."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import aiohttp
import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path for folder in ("gateway", "mappings") for path in (ROOT / folder).rglob("*.py")
)


def is_private(name: str) -> bool:
    is_of_named_tuple = name in ("_asdict", "_fields", "_make", "_replace")
    return name.startswith("_") and not name.endswith("__") and not is_of_named_tuple


@cache
def list_private_names() -> frozenset[str]:
    """Lists the private attributes, methods and functions that aiohttp defines."""
    names: set[str] = set()
    for path in Path(aiohttp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return frozenset(filter(is_private, names))


def find_private_uses(source: str) -> Iterator[str]:
    """Finds imports of private names, attributes of other objects, and names in subclasses."""
    tree = ast.parse(source)
    imported_names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if "aiohttp" in (getattr(node, "module", None) or alias.name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiohttp"):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and node.attr in list_private_names():
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif isinstance(node, ast.ClassDef) and imported_names & {
            name.id for base in node.bases for name in ast.walk(base) if isinstance(name, ast.Name)
        }:
            # Whatever its own private names are, those of the base class must not be among them.
            for inner in ast.walk(node):
                name = getattr(inner, "attr", None) or getattr(inner, "name", None) or ""
                if name in list_private_names():
                    yield name


@pytest.mark.parametrize(
    "source",
    [
        "from aiohttp.web_protocol import _ErrInfo",
        "def stop(protocol): protocol._force_close = True",
        "from aiohttp import web\nclass A(web.Server):\n  def f(self): return self._loop",
        "from aiohttp import web\nclass A(web.AppRunner):\n  async def _make_server(self): ...",
        "from aiohttp.payload import Payload\nclass A(Payload):\n  def f(self): self._size = 1",
    ],
)
def test_private_name_is_found(source: str) -> None:
    assert list(find_private_uses(source))


def test_product_uses_no_private_name_of_aiohttp() -> None:
    uses = {
        str(path.relative_to(ROOT)): names
        for path in MODULES
        if (names := sorted(set(find_private_uses(path.read_text()))))
    }
    assert uses == {}
