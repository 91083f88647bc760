"""Ids of the two interfaces: which need an alias, its format, and where ids are replaced."""

from __future__ import annotations

import re

import pytest

from mappings import legacy
from mappings.ids import (
    ALIAS_LENGTH,
    LEGACY_ID_PATTERN,
    derive_alias_id,
    derive_deterministic_id,
    needs_alias_id,
    replace_ids,
    replace_ids_in_text,
)

KEY = b"k" * 32
LONG_ID = "B-912Cx2pScHNSnXXO5P4ngG"


def test_alias_id_has_prefix_and_sixteen_upper_case_characters() -> None:
    for number in range(500):
        name = derive_alias_id(KEY, "acme", f"B-{number:022}")
        assert re.fullmatch("B-[A-Z0-9]{16}", name)
    assert derive_alias_id(KEY, "acme", "P-" + "x" * 22).startswith("P-")
    assert ALIAS_LENGTH == 16


def test_alias_id_depends_on_key_merchant_and_id_only() -> None:
    name = derive_alias_id(KEY, "acme", LONG_ID)
    assert name == derive_alias_id(KEY, "acme", LONG_ID)
    other_arguments = [
        (b"l" * 32, "acme", LONG_ID),
        (KEY, "bolt", LONG_ID),
        (KEY, "acme", LONG_ID[:-1] + "H"),
    ]
    assert (
        len({name, *(derive_alias_id(*alias_arguments) for alias_arguments in other_arguments)})
        == 4
    )


@pytest.mark.parametrize(
    ("kind", "id_", "setting", "is_needed"),
    [
        ("batch", LONG_ID, "all", True),
        ("batch", LONG_ID, "batches", True),
        ("batch", LONG_ID, "none", False),
        ("payment", "P-" + "x" * 22, "all", True),
        ("payment", "P-" + "x" * 22, "batches", False),
        ("batch", "B-" + "x" * 16, "all", False),
        ("batch", "B-" + "x" * 17, "all", True),
        ("recipient", "R-1", "all", False),
    ],
)
def test_only_too_long_id_needs_an_alias(
    kind: str, id_: str, setting: str, *, is_needed: bool
) -> None:
    assert needs_alias_id(kind, id_, setting) is is_needed  # type: ignore[arg-type]


def test_generated_id_fits_a_legacy_client() -> None:
    assert re.fullmatch("P-[A-Z0-9]{16}", derive_deterministic_id("P", "seed", LONG_ID))
    assert (
        derive_deterministic_id("P", "seed", LONG_ID)
        == derive_deterministic_id("P", "seed", LONG_ID)
        != derive_deterministic_id("P", "seed", LONG_ID, "1")
    )


def test_ids_of_answer_are_replaced_only_in_id_fields() -> None:
    body = {
        "payment": {
            "id": "P-1",
            "memo": "P-1",
            "recipient": {"id": "R-1", "referenceId": "R-1"},
            "batch": {"id": "B-1"},
        }
    }
    names = {"P-1": "P-A", "R-1": "R-A", "B-1": "B-A"}
    payment = replace_ids(legacy.PaymentAnswer, body, names)["payment"]
    assert (payment["id"], payment["recipient"]["id"], payment["batch"]["id"]) == (
        "P-A",
        "R-A",
        "B-A",
    )
    assert (payment["memo"], payment["recipient"]["referenceId"]) == ("P-1", "R-1")


def test_only_known_ids_are_replaced_in_text() -> None:
    text = f"Payment P-9 of {LONG_ID} (not {LONG_ID}x)"
    replaced_text = replace_ids_in_text(text, {LONG_ID: "B-A"}.get)
    assert replaced_text == f"Payment P-9 of B-A (not {LONG_ID}x)"


@pytest.mark.parametrize("id_", ["B-", "B-a/b", "B-a.b", "B-é", "", "B", "B-a\n", "B-" + "x" * 65])
def test_invalid_ids_do_not_match(id_: str) -> None:
    assert not LEGACY_ID_PATTERN.fullmatch(id_)
