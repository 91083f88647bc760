"""Memory-efficient sequences: rows are stored serialized and read in slices.

A batch may have a hundred thousand payments. As objects they take forty times the memory of their
text, and freeing them at once blocks the event loop for too long. A ``LazySequence`` can replace a
list that is read from front to back, any number of times; its rows must not be modified. Short
lists stay plain lists: the functions of this module accept both.
"""

from __future__ import annotations

import pickle
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, starmap
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from mappings.exact_json import compile_field_decoder, encode_plain_value, loads_trusted

T = TypeVar("T")

SLICE_SIZE = 200
"""Number of rows decoded at a time."""

UNSERIALIZED_BYTES = 1024 * 1024
"""Size, if they were serialized, of the rows of a sequence that are not, as those of a request with
ten thousand payments: reading rows again and again costs more than all else that is done with them,
but as objects they take ten times as much.
"""


UNCOMPRESSED_BYTES = 8 * 1024 * 1024
"""Size of the serialized rows of a sequence that are not compressed: more than of the service's
response to a batch of ten thousand payments."""

_ZLIB_LEVEL = 1
"""The fastest level: rows still shrink to a fifth."""


if TYPE_CHECKING:
    _Sequence = Sequence[Any]
else:  # whose metaclass makes ``isinstance`` slow, which nearly all values are asked
    _Sequence = object


@Sequence.register
class LazySequence(_Sequence):
    """A sequence whose rows are decoded or computed in slices."""

    _cached_slice: tuple[int, list[Any]] = (-1, [])
    """One suffices: rows are mostly read in order, also by two sequences derived from this one."""

    def read_numbered_slice(self, number: int) -> list[Any]:
        """Returns slice ``number``: ``SLICE_SIZE`` rows, or fewer at the end."""
        cached_number, rows = self._cached_slice
        if number != cached_number:
            rows = self._compute_slice(number)
            self._cached_slice = number, rows
        return rows

    @abstractmethod
    def _compute_slice(self, number: int) -> list[Any]: ...

    def iterate_slices(self) -> Iterator[list[Any]]:
        for number in range(-(-len(self) // SLICE_SIZE)):
            yield self.read_numbered_slice(number)

    def __iter__(self) -> Iterator[Any]:
        for rows in self.iterate_slices():
            yield from rows

    def iterate_field(self, name: str) -> Iterator[Any]:
        """Iterates over a field of rows that are objects; None if one lacks it."""
        return (row.get(name) for row in self)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        # A ``range`` checks bounds and negative indexes as a list does.
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return [self[position] for position in positions]
        number, offset = divmod(positions, SLICE_SIZE)
        return self.read_numbered_slice(number)[offset]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | LazySequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # unhashable, like a list


class SerializedSequence(LazySequence):
    """Rows of which the first may be held as they are; all others are stored as compact JSON."""

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        self._slices: list[list[Any] | bytes] = []
        self._count = 0
        self._unserialized_count = -1
        self._serialized_bytes = 0
        self.row_types: set[type] | None = None
        """The types of the rows, if they are known."""
        self.extend(rows)

    @classmethod
    def from_texts(cls, slices: Iterable[tuple[int, set[type], bytes]]) -> Self:
        """Creates a sequence from slices: the number and types of rows, and their compact JSON."""
        sequence = cls()
        sequence.row_types = set()
        for count, row_types, text in slices:
            sequence._append_serialized_slice(text)
            sequence._count += count
            sequence.row_types |= row_types
        return sequence

    def extend(self, rows: Iterable[Any]) -> None:
        """Appends rows to a sequence of full slices, before it is read."""
        for chunk in iterate_slices(rows):
            self._count += len(chunk)
            if self._unserialized_count < 0:
                self._unserialized_count = UNSERIALIZED_BYTES // len(_serialize(chunk))
            if len(self._slices) < self._unserialized_count:
                self._slices.append(chunk)
            else:
                self._append_serialized_slice(_serialize(chunk))

    def _append_serialized_slice(self, serialized: bytes) -> None:
        self._serialized_bytes += len(serialized)
        is_compressed = self._serialized_bytes > UNCOMPRESSED_BYTES
        self._slices.append(zlib.compress(serialized, _ZLIB_LEVEL) if is_compressed else serialized)

    def __len__(self) -> int:
        return self._count

    def _compute_slice(self, number: int) -> list[Any]:
        stored_slice = self._slices[number]
        if isinstance(stored_slice, list):
            return stored_slice
        return _deserialize(_decompress(stored_slice))

    def iterate_texts(self) -> Iterator[bytes]:
        """Iterates over the compact JSON of slices of the rows."""
        for number, stored_slice in enumerate(self._slices):
            text = b"" if isinstance(stored_slice, list) else _decompress(stored_slice)
            is_text = text and _is_json(text)
            yield text if is_text else encode_plain_value(self.read_numbered_slice(number))

    def iterate_field(self, name: str) -> Iterator[Any]:
        # The other fields are only skipped, in a fraction of the time.
        decode = compile_field_decoder(name)
        return (row.value for text in self.iterate_texts() for row in decode(text))


class MappedSequence(LazySequence):
    """Applies a function to the rows of one or more sequences, again for each read."""

    def __init__(self, function: Callable[..., Any], *sources: Sequence[Any]) -> None:
        self._function = function
        self._sources = sources

    def __len__(self) -> int:
        return len(self._sources[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return self._function(*(source[index] for source in self._sources))
        return super().__getitem__(index)

    def _compute_slice(self, number: int) -> list[Any]:
        slices = (_select_slice(source, number) for source in self._sources)
        return [*starmap(self._function, zip(*slices, strict=True))]


def _serialize(rows: list[Any]) -> bytes:
    """Serializes rows for use within this process: objects, which have only JSON values, as JSON."""
    return encode_plain_value(rows) if {*map(type, rows)} == {dict} else pickle.dumps(rows)


def _deserialize(serialized: bytes) -> list[Any]:
    if _is_json(serialized):
        return loads_trusted(serialized)  # type: ignore[no-any-return]
    return pickle.loads(serialized)  # type: ignore[no-any-return] # noqa: S301 - our own data


def _is_json(serialized: bytes) -> bool:
    return not serialized.startswith(pickle.PROTO)


def _decompress(stored_slice: bytes) -> bytes:
    # The first byte of zlib's format, in which neither JSON of a list nor a pickle begins.
    return zlib.decompress(stored_slice) if stored_slice.startswith(b"x") else stored_slice


def _select_slice(rows: Sequence[Any], number: int) -> Sequence[Any]:
    if isinstance(rows, LazySequence):
        return rows.read_numbered_slice(number)
    return rows[number * SLICE_SIZE : (number + 1) * SLICE_SIZE]


def iterate_slices(rows: Iterable[Any]) -> Iterator[list[Any]]:
    if isinstance(rows, LazySequence):
        return rows.iterate_slices()
    return iterate_chunks(rows, SLICE_SIZE)


def iterate_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Iterates over lists of ``size`` items; the last one may be shorter."""
    remaining = iter(items)
    while chunk := [*islice(remaining, size)]:
        yield chunk


def map_rows(function: Callable[..., Any], *sources: Sequence[Any]) -> Sequence[Any]:
    """Applies a function to the rows of one source, or of several of equal length.

    The result is computed lazily if any source is lazy.
    """
    for source in sources:
        if isinstance(source, LazySequence):
            return MappedSequence(function, *sources)
    return [*starmap(function, zip(*sources, strict=True))]


def materialize_rows(rows: Sequence[Any]) -> Sequence[Any]:
    """Computes a lazily mapped sequence now, so that later reads do not compute it again."""
    # A mapped sequence also keeps its sources in memory, which often are much larger.
    return SerializedSequence(rows) if isinstance(rows, MappedSequence) else rows


def filter_rows(rows: Sequence[Any], predicate: Callable[[Any], bool]) -> Sequence[Any]:
    """Returns the rows that satisfy the predicate."""
    if isinstance(rows, LazySequence):
        # Most filters keep everything, and then the rows need not be compressed again.
        if all(map(predicate, rows)):
            return rows
        return SerializedSequence(row for row in rows if predicate(row))
    return [row for row in rows if predicate(row)]


def pack_fields(rows: Sequence[Any], names: Sequence[str]) -> Callable[[int], Mapping[str, Any]]:
    """Returns a function that reads these fields of the row at a position, in any order.

    Reading a row of a lazy sequence would decode its whole slice.
    """
    if not isinstance(rows, LazySequence):
        return rows.__getitem__
    texts = [encode_plain_value([row.get(name) for name in names]) for row in rows]
    return lambda position: dict(zip(names, loads_trusted(texts[position]), strict=True))


def chain_rows(*sequences: Sequence[Any]) -> Sequence[Any]:
    """Concatenates sequences; the result is lazy if any of them is."""
    non_empty = [rows for rows in sequences if rows]
    if len(non_empty) == 1:
        return non_empty[0]
    if any(isinstance(rows, LazySequence) for rows in non_empty):
        return SerializedSequence(chain(*non_empty))
    return [*chain(*non_empty)]


def has_only_type(rows: Sequence[Any], row_type: type) -> bool:
    """Whether all rows are exactly of this type, not of a subclass."""
    found_types = rows.row_types if isinstance(rows, SerializedSequence) else None
    return (set(map(type, rows)) if found_types is None else found_types) <= {row_type}


def iterate_field(rows: Sequence[Any], name: str) -> Iterator[Any]:
    """Iterates over a field of rows that are objects; None if one lacks it."""
    if isinstance(rows, LazySequence):
        return rows.iterate_field(name)
    return map(methodcaller("get", name), rows)
