"""Walks through JSON values level by level, with functions that run in C for all items at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from operator import is_
from typing import Any

LISTS = {list, tuple}


def iterate_dicts(level: Sequence[Any]) -> Iterator[dict[str, Any]]:
    return compress(level, map(is_, map(type, level), repeat(dict)))


def list_nested_items(level: Sequence[Any]) -> list[Any]:
    """Lists what the dicts and lists of a level contain."""
    lists = compress(level, map(LISTS.__contains__, map(type, level)))
    fields = map(dict.values, iterate_dicts(level))
    return [*chain.from_iterable(fields), *chain.from_iterable(lists)]
