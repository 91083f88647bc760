"""Ids of the two interfaces: which need an alias, its format, and where ids are replaced."""

from __future__ import annotations

import re

import pytest

from mappings import legacy
from mappings.ids import (
    ALIAS_LENGTH,
    ID_PATTERN,
    derive_alias_id,
    derive_id,
    needs_alias_id,
    replace_ids,
    replace_ids_in_text,
)

KEY = b"k" * 32
LONG = "B-912Cx2pScHNSnXXO5P4ngG"


def test_a_stand_in_is_sixteen_upper_case_characters_behind_the_same_prefix() -> None:
    for number in range(500):
        name = derive_alias_id(KEY, "acme", f"B-{number:022}")
        assert re.fullmatch("B-[A-Z0-9]{16}", name)
    assert derive_alias_id(KEY, "acme", "P-" + "x" * 22).startswith("P-")
    assert ALIAS_LENGTH == 16


def test_a_stand_in_follows_from_key_merchant_and_id_alone() -> None:
    name = derive_alias_id(KEY, "acme", LONG)
    assert name == derive_alias_id(KEY, "acme", LONG)
    others = [(b"l" * 32, "acme", LONG), (KEY, "bolt", LONG), (KEY, "acme", LONG[:-1] + "H")]
    assert len({name, *(derive_alias_id(*other) for other in others)}) == 4


def test_stand_ins_are_all_different() -> None:
    names = {derive_alias_id(KEY, "acme", f"B-{number:022}") for number in range(20_000)}
    assert len(names) == 20_000


@pytest.mark.parametrize(
    ("kind", "id_", "mode", "needed"),
    [
        ("batch", LONG, "all", True),
        ("batch", LONG, "batches", True),
        ("batch", LONG, "none", False),
        ("payment", "P-" + "x" * 22, "all", True),
        ("payment", "P-" + "x" * 22, "batches", False),
        ("batch", "B-" + "x" * 16, "all", False),
        ("batch", "B-" + "x" * 17, "all", True),
        ("recipient", "R-1", "all", False),
    ],
)
def test_only_an_id_that_is_too_long_needs_a_stand_in(
    kind: str, id_: str, mode: str, *, needed: bool
) -> None:
    assert needs_alias_id(kind, id_, mode) is needed  # type: ignore[arg-type]


def test_an_id_that_is_made_here_fits_a_legacy_client() -> None:
    assert re.fullmatch("P-[A-Z0-9]{16}", derive_id("P", "seed", LONG))
    assert (
        derive_id("P", "seed", LONG)
        == derive_id("P", "seed", LONG)
        != derive_id("P", "seed", LONG, "1")
    )


def test_every_id_of_an_answer_is_spelled_anew_where_the_shapes_say_so_and_nowhere_else() -> None:
    body = {
        "payment": {
            "id": "P-1",
            "memo": "P-1",
            "recipient": {"id": "R-1", "referenceId": "R-1"},
            "batch": {"id": "B-1"},
        }
    }
    names = {"P-1": "P-A", "R-1": "R-A", "B-1": "B-A"}
    shown = replace_ids(legacy.PaymentAnswer, body, names)["payment"]
    assert (shown["id"], shown["recipient"]["id"], shown["batch"]["id"]) == ("P-A", "R-A", "B-A")
    assert (shown["memo"], shown["recipient"]["referenceId"]) == ("P-1", "R-1")


def test_in_text_only_known_ids_are_spelled_anew() -> None:
    text = f"Payment P-9 of {LONG} (not {LONG}x)"
    said = replace_ids_in_text(text, {LONG: "B-A"}.get)
    assert said == f"Payment P-9 of B-A (not {LONG}x)"


@pytest.mark.parametrize("id_", ["B-", "B-a/b", "B-a.b", "B-é", "", "B", "B-a\n", "B-" + "x" * 65])
def test_what_is_no_id(id_: str) -> None:
    assert not ID_PATTERN.fullmatch(id_)
