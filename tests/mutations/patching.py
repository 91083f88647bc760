"""Applies a mutant to loaded modules and removes it again, without a new process.

The mutated source is executed as a separate module. Functions of the loaded module then get the mutant's
code, and its tables are replaced by the mutant's, wherever they were imported. For flows, and for tables
from which nothing else is derived, this equals a start with the mutant. Shapes, field types, operations
and endpoints are read when the gateway starts; their mutants are tried in processes that ``zygote`` forks.
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
    tree = mutant.build_tree()
    mutated_module = ModuleType(module.__name__)
    mutated_module.__file__ = module.__file__
    # Dataclasses look up their module by name while they are created.
    exec(compile(tree, str(module.__file__), "exec"), mutated_module.__dict__)
    originals: list[tuple[Any, str, Any]] = []
    try:
        if mutant.is_flow:
            _replace_code(module, mutated_module, originals)
        else:
            for name in list_derived_names(parse_module(mutant.module), mutant.target):
                _replace_value(
                    getattr(module, name), getattr(mutated_module, name), name, originals
                )
        _clear_caches()
        yield
    finally:
        for holder, name, value in reversed(originals):
            setattr(holder, name, value)
        _clear_caches()


def _replace_code(
    module: ModuleType, mutated_module: ModuleType, originals: list[tuple[Any, str, Any]]
) -> None:
    for name, original in [*vars(module).items()]:
        replacement = getattr(mutated_module, name, None)
        if isinstance(original, type) and original.__module__ == module.__name__:
            for attribute, inner in [*vars(original).items()]:
                _replace_function(inner, vars(replacement).get(attribute), originals)
        elif getattr(original, "__module__", None) == module.__name__:
            _replace_function(original, replacement, originals)


def _replace_function(
    original: Any, replacement: Any, originals: list[tuple[Any, str, Any]]
) -> None:
    original, replacement = _unwrap_function(original), _unwrap_function(replacement)
    if isinstance(original, FunctionType) and isinstance(replacement, FunctionType):
        originals.append((original, "__code__", original.__code__))
        original.__code__ = replacement.__code__


def _unwrap_function(value: Any) -> Any:
    """The function inside a property, a cache or a class method."""
    for inner in ("fget", "__wrapped__", "__func__", "func"):
        if not isinstance(value, FunctionType) and hasattr(value, inner):
            value = getattr(value, inner)
    return value


def _replace_value(
    original: Any, replacement: Any, name: str, originals: list[tuple[Any, str, Any]]
) -> None:
    """Replaces a value wherever it is bound: under its own name, or as the identical object."""
    is_plain = original is None or isinstance(original, str | int | float)
    for module in [*sys.modules.values()]:
        if module.__name__.partition(".")[0] not in ROOTS:
            continue
        for other_name, value in [*vars(module).items()]:
            if value is original and (other_name == name or not is_plain):
                originals.append((module, other_name, original))
                setattr(module, other_name, replacement)
    if hasattr(original, "rows") and hasattr(replacement, "rows"):
        # A field table that is nested in another.
        for attribute in ("rows", "_by_legacy", "current_fields_of_answer", "translate_to_legacy"):
            originals.append((original, attribute, getattr(original, attribute)))
            setattr(original, attribute, getattr(replacement, attribute))


def _clear_caches() -> None:
    for name, module in [*sys.modules.items()]:
        if name.startswith("mappings"):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
