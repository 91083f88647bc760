"""Parses the input of ``ids import``: CSV of ``legacy_id,current_id``, validated as a whole."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from mappings.ids import ID_PATTERN, ID_PREFIXES

HEADER = ["legacy_id", "current_id"]


class InvalidIdPairsError(Exception):
    """The file is not valid; the text names the line and the problem."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


def parse_id_pairs(data: bytes) -> dict[str, tuple[int, str]]:
    """Parses the file; returns line and current id by legacy id. Raises InvalidIdPairsError."""
    try:
        # Spreadsheets begin a CSV file with a byte order mark.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidIdPairsError(data[: error.start].count(b"\n") + 1, "is not UTF-8") from None
    pairs: dict[str, tuple[int, str]] = {}
    lines_by_current: dict[str, int] = {}
    for line, legacy_id, current_id in _iterate_pairs(text):
        _check_pair(line, legacy_id, current_id)
        earlier, earlier_current_id = pairs.get(legacy_id, (line, current_id))
        if earlier_current_id != current_id:
            raise InvalidIdPairsError(line, f"{legacy_id} stands for another id in line {earlier}")
        other_line = lines_by_current.setdefault(current_id, line)
        if other_line != line and legacy_id not in pairs:
            raise InvalidIdPairsError(
                line, f"{current_id} has another legacy id in line {other_line}"
            )
        pairs.setdefault(legacy_id, (line, current_id))
    if not pairs:
        raise InvalidIdPairsError(1, "the file contains no pair")
    return pairs


def _iterate_pairs(text: str) -> Iterator[tuple[int, str, str]]:
    rows = csv.reader(text.splitlines(), strict=True)
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or (rows.line_num == 1 and cells == HEADER):
                continue
            if len(cells) != len(HEADER):
                raise InvalidIdPairsError(rows.line_num, "must be legacy_id,current_id")
            yield rows.line_num, cells[0], cells[1]
    except csv.Error as error:
        raise InvalidIdPairsError(rows.line_num, f"is not CSV ({error})") from None


def _check_pair(line: int, legacy_id: str, current_id: str) -> None:
    for name, id_ in zip(HEADER, (legacy_id, current_id), strict=True):
        if not ID_PATTERN.fullmatch(id_) or id_.partition("-")[0] not in ID_PREFIXES:
            raise InvalidIdPairsError(
                line, f"{name} is not an id, such as R-, B- or P- and 16 characters"
            )
    if legacy_id.partition("-")[0] != current_id.partition("-")[0]:
        raise InvalidIdPairsError(
            line, f"{legacy_id} and {current_id} are ids of different objects"
        )
