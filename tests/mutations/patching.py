"""Applies a mutant to loaded modules and removes it again, without a new process.

The mutated source is run apart. What stands in a running gateway of the module then gets the mutant's
code (functions) or its place (tables), wherever it was imported. That is as good as a start with it
for flows and for tables that nothing else was made of. Shapes, kinds of value, operations and
endpoints are read when the gateway starts, and their mutants are tried by ``zygote``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from tests.mutations.mutants import Mutant, names_made_of, tree_of

ROOTS = ("mappings", "gateway")


@contextmanager
def patched(mutant: Mutant) -> Iterator[None]:
    """Raises what the mutated module raises when it loads."""
    module = sys.modules[f"mappings.{mutant.module}"]
    tree = mutant.tree()
    apart = ModuleType(module.__name__)
    apart.__file__ = module.__file__
    # Some things look their module up by name while they are made: dataclasses do.
    exec(compile(tree, str(module.__file__), "exec"), apart.__dict__)
    undo: list[tuple[Any, str, Any]] = []
    try:
        if mutant.is_flow:
            _put_code(module, apart, undo)
        else:
            for name in names_made_of(tree_of(mutant.module), mutant.where):
                _put_value(getattr(module, name), getattr(apart, name), name, undo)
        _clear_caches()
        yield
    finally:
        for holder, name, value in reversed(undo):
            setattr(holder, name, value)
        _clear_caches()


def _put_code(module: ModuleType, apart: ModuleType, undo: list[tuple[Any, str, Any]]) -> None:
    for name, was in [*vars(module).items()]:
        made = getattr(apart, name, None)
        if isinstance(was, type) and was.__module__ == module.__name__:
            for part, inner in [*vars(was).items()]:
                _put_function(inner, vars(made).get(part), undo)
        elif getattr(was, "__module__", None) == module.__name__:
            _put_function(was, made, undo)


def _put_function(was: Any, made: Any, undo: list[tuple[Any, str, Any]]) -> None:
    was, made = _bare(was), _bare(made)
    if isinstance(was, FunctionType) and isinstance(made, FunctionType):
        undo.append((was, "__code__", was.__code__))
        was.__code__ = made.__code__


def _bare(value: Any) -> Any:
    """A function without what is around it: a property, a cache, a class method."""
    for inner in ("fget", "__wrapped__", "__func__", "func"):
        if not isinstance(value, FunctionType) and hasattr(value, inner):
            value = getattr(value, inner)
    return value


def _put_value(was: Any, made: Any, name: str, undo: list[tuple[Any, str, Any]]) -> None:
    """Wherever it stands: under its own name, or as the very same object."""
    is_plain = was is None or isinstance(was, str | int | float)
    for module in [*sys.modules.values()]:
        if module.__name__.partition(".")[0] not in ROOTS:
            continue
        for other, value in [*vars(module).items()]:
            if value is was and (other == name or not is_plain):
                undo.append((module, other, was))
                setattr(module, other, made)
    if hasattr(was, "rows") and hasattr(made, "rows"):
        # A field table that another one has nested.
        for part in ("rows", "_by_legacy", "_source_names", "_nested_tables"):
            undo.append((was, part, getattr(was, part)))
            setattr(was, part, getattr(made, part))


def _clear_caches() -> None:
    for name, module in [*sys.modules.items()]:
        if name.startswith("mappings"):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
