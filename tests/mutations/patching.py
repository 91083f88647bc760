"""Applies a mutant to loaded modules and removes it again, without a new process.

The mutated source is run apart. What stands in a running gateway of the module then gets the mutant's
code (functions) or its place (tables), wherever it was imported. That is as good as a start with it
for flows and for tables that nothing else was made of. Shapes, kinds of value, operations and
endpoints are read when the gateway starts, and their mutants are tried in processes that ``zygote`` forks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from tests.mutations.mutants import Mutant, list_derived_names, parse_module

ROOTS = ("mappings", "gateway")


@contextmanager
def apply_mutant(mutant: Mutant) -> Iterator[None]:
    """Raises what the mutated module raises when it loads."""
    module = sys.modules[f"mappings.{mutant.module}"]
    tree = mutant.tree()
    mutated_module = ModuleType(module.__name__)
    mutated_module.__file__ = module.__file__
    # Some things look their module up by name while they are made: dataclasses do.
    exec(compile(tree, str(module.__file__), "exec"), mutated_module.__dict__)
    undo: list[tuple[Any, str, Any]] = []
    try:
        if mutant.is_flow:
            _put_code(module, mutated_module, undo)
        else:
            for name in list_derived_names(parse_module(mutant.module), mutant.where):
                _put_value(getattr(module, name), getattr(mutated_module, name), name, undo)
        _clear_caches()
        yield
    finally:
        for holder, name, value in reversed(undo):
            setattr(holder, name, value)
        _clear_caches()


def _put_code(module: ModuleType, apart: ModuleType, undo: list[tuple[Any, str, Any]]) -> None:
    for name, was in [*vars(module).items()]:
        replacement = getattr(apart, name, None)
        if isinstance(was, type) and was.__module__ == module.__name__:
            for part, inner in [*vars(was).items()]:
                _put_function(inner, vars(replacement).get(part), undo)
        elif getattr(was, "__module__", None) == module.__name__:
            _put_function(was, replacement, undo)


def _put_function(was: Any, replacement: Any, undo: list[tuple[Any, str, Any]]) -> None:
    was, replacement = _bare(was), _bare(replacement)
    if isinstance(was, FunctionType) and isinstance(replacement, FunctionType):
        undo.append((was, "__code__", was.__code__))
        was.__code__ = replacement.__code__


def _bare(value: Any) -> Any:
    """A function without what is around it: a property, a cache, a class method."""
    for inner in ("fget", "__wrapped__", "__func__", "func"):
        if not isinstance(value, FunctionType) and hasattr(value, inner):
            value = getattr(value, inner)
    return value


def _put_value(was: Any, replacement: Any, name: str, undo: list[tuple[Any, str, Any]]) -> None:
    """Wherever it stands: under its own name, or as the very same object."""
    is_plain = was is None or isinstance(was, str | int | float)
    for module in [*sys.modules.values()]:
        if module.__name__.partition(".")[0] not in ROOTS:
            continue
        for other, value in [*vars(module).items()]:
            if value is was and (other == name or not is_plain):
                undo.append((module, other, was))
                setattr(module, other, replacement)
    if hasattr(was, "rows") and hasattr(replacement, "rows"):
        # A field table that another one has nested.
        for part in ("rows", "_by_legacy", "_source_names", "_nested_tables"):
            undo.append((was, part, getattr(was, part)))
            setattr(was, part, getattr(replacement, part))


def _clear_caches() -> None:
    for name, module in [*sys.modules.items()]:
        if name.startswith("mappings"):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
