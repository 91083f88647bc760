"""Memory-efficient sequences: rows are stored compressed and decoded in slices.

A batch may have a hundred thousand payments. As objects they take forty times the memory of their
text, and freeing them at once blocks the event loop for too long. A ``LazySequence`` can replace a
list that is read from front to back, any number of times; its rows must not be modified. Short
lists stay plain lists: the functions of this module accept both.
"""

from __future__ import annotations

import marshal
import pickle
import zlib
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise, starmap
from typing import Any, TypeVar, overload

T = TypeVar("T")

SLICE = 200
"""Rows that are decoded at a time."""

_QUICKLY = 1
"""The fastest level: rows still shrink to a fifth, in less time than serializing takes."""


BLOCK = 256 * 1024
"""Minimum size of an allocation: many small ones would fragment the heap, and the process could not
return the memory.
"""


class Rows(Sequence[Any]):
    """A sequence whose rows are decoded or computed in slices."""

    @abstractmethod
    def slice_at(self, number: int) -> list[Any]:
        """Returns slice ``number``: ``SLICE_SIZE`` rows, or fewer at the end."""

    def slices(self) -> Iterator[list[Any]]:
        for number in range(-(-len(self) // SLICE)):
            yield self.slice_at(number)

    def __iter__(self) -> Iterator[Any]:
        for rows in self.slices():
            yield from rows

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        wanted = range(len(self))[index]
        if isinstance(wanted, range):
            return [self[one] for one in wanted]
        number, place = divmod(wanted, SLICE)
        return self.slice_at(number)[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Rows):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # unhashable, like a list


class Packed(Rows):
    """Rows stored compressed."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._slices: list[memoryview] = []
        self._count = 0
        self.types: set[type] = set()
        """The types of the rows."""
        block, ends = bytearray(), [0]
        for some in iterate_slices(rows):
            block += _shrunk(some)
            ends.append(len(block))
            self._count += len(some)
            self.types.update(map(type, some))
            # Slices share large allocations; see BLOCK_BYTES.
            if len(block) >= BLOCK:
                self._keep(block, ends)
                block, ends = bytearray(), [0]
        self._keep(block, ends)
        self._last: tuple[int, list[Any]] = (-1, [])

    def _keep(self, block: bytearray, ends: Sequence[int]) -> None:
        view = memoryview(bytes(block))
        self._slices += [view[start:end] for start, end in pairwise(ends)]

    def __len__(self) -> int:
        return self._count

    def slice_at(self, number: int) -> list[Any]:
        there, some = self._last
        if number != there:
            some = _as_it_was(self._slices[number])
            self._last = number, some
        return some


class Each(Rows):
    """Applies a function to the rows of one or more sequences, again for each read."""

    def __init__(self, change: Callable[..., Any], *sources: Sequence[Any]) -> None:
        self._change = change
        self._sources = sources
        self._last: tuple[int, list[Any]] = (-1, [])

    def __len__(self) -> int:
        return len(self._sources[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return self._change(*(source[index] for source in self._sources))
        return super().__getitem__(index)

    def slice_at(self, number: int) -> list[Any]:
        there, some = self._last
        if number != there:
            # Cached, because two sequences that are derived from this one are often read in
            # parallel.
            some = _side_by_side(self._change, [_slice_of(one, number) for one in self._sources])
            self._last = number, some
        return some


class Keyed(Mapping[str, Any]):
    """A compressed mapping for very many entries, with random access; last value wins.

    Entries are compressed in small chunks, and an open-addressing hash table holds their positions.
    A dictionary would take more memory than its contents, and freeing a hundred thousand strings
    would block the event loop.
    """

    def __init__(self, pairs: Iterable[tuple[str, Any]] = ()) -> None:
        self._packed = bytearray()
        self._ends = array("Q", [0])
        self._left: list[tuple[str, Any]] = []
        self._hashes = array("q")
        self._slots = array("i", [_FREE]) * 8
        """Entry numbers, each in the first free slot at or after the one of its hash."""
        self._count = 0
        self._last: tuple[int, list[tuple[str, Any]]] = (-1, [])
        self.update(pairs)

    def update(self, pairs: Iterable[tuple[str, Any]]) -> None:
        for pair in pairs:
            hashed = hash(pair[0])
            slot = self._slot(pair[0], hashed)
            self._count += self._slots[slot] == _FREE
            self._slots[slot] = len(self._hashes)
            self._hashes.append(hashed)
            self._left.append(pair)
            if len(self._left) == _FEW:
                self._packed += _shrunk(self._left)
                self._ends.append(len(self._packed))
                self._left = []
            # Linear probing becomes slow in a table that is more than half full.
            if 2 * self._count > len(self._slots):
                self._make_room()

    def _make_room(self) -> None:
        numbers = [number for number in self._slots if number != _FREE]
        self._slots = array("i", [_FREE]) * (2 * len(self._slots))
        for number in numbers:
            last = len(self._slots) - 1
            slot = self._hashes[number] & last
            while self._slots[slot] != _FREE:
                slot = (slot + 1) & last
            self._slots[slot] = number

    def _slot(self, name: str, hashed: int) -> int:
        """Returns the slot of a name, or the free slot in which to insert it."""
        slots, hashes = self._slots, self._hashes
        last = len(slots) - 1
        slot = hashed & last
        while (number := slots[slot]) != _FREE:
            if hashes[number] == hashed and self._pair(number)[0] == name:
                break
            slot = (slot + 1) & last
        return slot

    def _pair(self, number: int) -> tuple[str, Any]:
        few, place = divmod(number, _FEW)
        there, some = self._last
        if few != there:
            if few == len(self._ends) - 1:
                return self._left[place]
            packed = memoryview(self._packed)[self._ends[few] : self._ends[few + 1]]
            some = _as_it_was(packed)
            self._last = few, some
        return some[place]

    def __getitem__(self, name: str) -> Any:
        number = self._slots[self._slot(name, hash(name))]
        if number == _FREE:
            raise KeyError(name)
        return self._pair(number)[1]

    def __iter__(self) -> Iterator[str]:
        # An overwritten entry stays stored, but its slot points to the newer one: skip it.
        for number in range(len(self._hashes)):
            name = self._pair(number)[0]
            if self._slots[self._slot(name, self._hashes[number])] == number:
                yield name

    def __len__(self) -> int:
        return self._count


_FREE = -1

_FEW = 16
"""Entries that are compressed together: reading one decompresses them all."""


def _shrunk(some: list[Any]) -> bytes:
    """Serializes and compresses values for use within this process."""
    try:
        text = marshal.dumps(some)  # Three times faster than pickle, but only for plain values.
    except ValueError:
        text = pickle.dumps(some)
    return zlib.compress(text, _QUICKLY)


def _as_it_was(shrunk: memoryview) -> list[Any]:
    text = zlib.decompress(shrunk)
    if text.startswith(pickle.PROTO):
        return pickle.loads(text)  # type: ignore[no-any-return] # noqa: S301 - our own data
    return marshal.loads(text)  # type: ignore[no-any-return] # noqa: S302 - our own data


def _side_by_side(change: Callable[..., Any], sources: Sequence[Sequence[Any]]) -> list[Any]:
    if len(sources) == 1:
        return [*map(change, sources[0])]
    return [*starmap(change, zip(*sources, strict=True))]


def _slice_of(rows: Sequence[Any], number: int) -> Sequence[Any]:
    if isinstance(rows, Rows):
        return rows.slice_at(number)
    return rows[number * SLICE : (number + 1) * SLICE]


def iterate_slices(rows: Iterable[Any]) -> Iterator[list[Any]]:
    return rows.slices() if isinstance(rows, Rows) else iterate_chunks(rows, SLICE)


def iterate_chunks(those: Iterable[T], count: int) -> Iterator[list[T]]:
    """Iterates over lists of ``size`` items; the last one may be shorter."""
    left = iter(those)
    while some := [*islice(left, count)]:
        yield some


def map_rows(change: Callable[..., Any], *sources: Sequence[Any]) -> Sequence[Any]:
    """Applies a function to the rows of one source, or of several of equal length.

    The result is computed lazily if any source is lazy.
    """
    if any(isinstance(source, Rows) for source in sources):
        return Each(change, *sources)
    return _side_by_side(change, sources)


def packed(rows: Sequence[Any]) -> Sequence[Any]:
    """Computes a lazily mapped sequence now, so that later reads do not compute it again."""
    return Packed(rows) if isinstance(rows, Each) else rows


def filter_rows(rows: Sequence[Any], which: Callable[[Any], bool]) -> Sequence[Any]:
    """Returns the rows that satisfy the predicate."""
    if isinstance(rows, Rows):
        # Most filters keep everything, and then the rows need not be compressed again.
        if all(map(which, rows)):
            return rows
        return Packed(row for row in rows if which(row))
    return [row for row in rows if which(row)]


def chain_rows(*those: Sequence[Any]) -> Sequence[Any]:
    """Concatenates sequences; the result is lazy if any of them is."""
    some = [rows for rows in those if rows]
    if len(some) == 1:
        return some[0]
    if any(isinstance(rows, Rows) for rows in some):
        return Packed(chain(*some))
    return [*chain(*some)]


def build_row_mapping(rows: Sequence[Any], pairs: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    """Builds a mapping that is compressed if the rows it is made from are lazy."""
    return Keyed(pairs) if isinstance(rows, Rows) else dict(pairs)


def has_only_type(rows: Sequence[Any], kind: type) -> bool:
    """Tells if all rows are exactly of this type, not of a subclass."""
    types = rows.types if isinstance(rows, Packed) else set(map(type, rows))
    return types <= {kind}
