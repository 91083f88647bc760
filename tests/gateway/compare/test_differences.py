"""Differences between two bodies: a table of cases, and properties of any document."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.compare.answer import Answer
from gateway.compare.differences import Differ, Difference
from gateway.compare.examples import ExampleBuilder
from gateway.compare.id_map import IdMap
from gateway.compare.mask import Redactor
from gateway.compare.operations import ID_IN_TEXT, OBJECT_ID
from gateway.compare.rules import Rules, build_rules
from gateway.compare.steps import Step, Template

BODY_PAIRS = tomllib.loads((Path(__file__).parent / "pairs.toml").read_text(encoding="utf-8"))[
    "pair"
]


def find_differences(control: str, candidate: str, **pair: Any) -> list[Difference]:
    rules = Rules().rules_without_writes.combine(build_rules(pair.get("rules", {}), "table"))
    differ = Differ(
        rules,
        IdMap(has_separate_ids=pair.get("ids", "paired") == "paired"),
        operation=pair.get("operation", ""),
        key_order=pair.get("key_order", False),
    )
    return differ.compare_bodies(control.encode(), candidate.encode())


@pytest.mark.parametrize("pair", BODY_PAIRS, ids=[one["name"] for one in BODY_PAIRS])
def test_body_pair_has_listed_differences(pair: dict[str, Any]) -> None:
    eye = Redactor(is_unmasked=True)
    told = [
        [
            one.kind,
            one.normal_path,
            eye.redact_value((), one.control).text,
            eye.redact_value((), one.candidate).text,
        ]
        for one in find_differences(**pair)
    ]
    wanted = sorted(pair["found"])
    assert (
        sorted(one[: len(want)] for one, want in zip(sorted(told), wanted, strict=True)) == wanted
    )


def test_difference_names_path_on_each_side() -> None:
    difference, missing = find_differences('{"l":["a","b",{"x":1}]}', '{"l":["b",{"x":2}]}')
    assert (missing.kind, missing.control_path) == ("missing", ("l", 0))
    assert (difference.control_path, difference.candidate_path, difference.normal_path) == (
        ("l", 2, "x"),
        ("l", 1, "x"),
        "l[].x",
    )


@pytest.mark.parametrize(
    ("control", "candidate", "note"),
    [
        ('{"a":"Ada"}', '{"a":"ADA"}', "only letter case differs"),
        ('{"a":"Ada"}', '{"a":"Ada "}', "only white space differs"),
        ('{"a":1.0}', '{"a":1}', "the same number, formatted differently"),
        ('{"a":"1.0"}', '{"a":"1"}', "the same number, formatted differently"),
        ('{"a":"1.0"}', '{"a":"2"}', ""),
        ('{"a":"1.0"}', '{"a":"1_0"}', ""),
        ('{"a":"sNaN"}', '{"a":"1"}', ""),
        ('{"a":1}', '\ufeff{"a":1}', "starts with a byte order mark"),
    ],
)
def test_similar_values_are_described_in_words(control: str, candidate: str, note: str) -> None:
    assert [difference.note for difference in find_differences(control, candidate)] == [note]


def test_document_nested_too_deep_is_compared_as_text() -> None:
    for depth, kind in ((100, "value"), (101, "value"), (100_000, "value")):
        deep = "[" * depth + "1" + "]" * depth
        assert find_differences(deep, deep) == []
        assert [
            difference.kind for difference in find_differences(deep, deep.replace("1", "2"))
        ] == [kind]
    assert [difference.kind for difference in find_differences("[" * 101 + "]" * 101, "[]")] == [
        "type"
    ]


# Answers


def build_answer(status: int = 200, body: str = '{"ok":true}', **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, body.encode())


def list_answer_differences(control: Answer, candidate: Answer) -> list[list[Any]]:
    differ = Differ(Rules().rules_without_writes, IdMap())
    return [
        [difference.kind, difference.normal_path]
        for difference in differ.compare_answers(control, candidate)
    ]


REFUSAL = '{"ok":false,"errors":[{"code":"invalid_field","message":"no","field":"email"}]}'


def test_refusal_by_candidate_is_one_difference_with_its_code() -> None:
    differ = Differ(Rules(), IdMap())
    (difference,) = differ.compare_answers(build_answer(), build_answer(406, REFUSAL))
    assert (difference.kind, difference.normal_path, difference.control, difference.candidate) == (
        "status",
        "@status",
        200,
        406,
    )
    assert difference.note == "candidate says invalid_field"


@pytest.mark.parametrize(
    "errors", [None, 1, "x", {}, [1], [None], [{}], [{"code": 1}], [{"code": "Ada Lovelace"}]]
)
def test_refusal_of_unknown_shape_has_no_code(errors: Any) -> None:
    differ = Differ(Rules(), IdMap())
    (difference,) = differ.compare_answers(
        build_answer(), build_answer(406, json.dumps({"errors": errors}))
    )
    assert (difference.kind, difference.note) == ("status", "")


def test_bodies_of_two_refusals_are_compared() -> None:
    other = REFUSAL.replace("invalid_field", "empty_field")
    assert list_answer_differences(build_answer(406, REFUSAL), build_answer(400, other)) == [
        ["status", "@status"],
        ["value", "errors[].code"],
    ]


@pytest.mark.parametrize(
    ("control", "candidate", "wanted"),
    [
        ({"content_type": "application/json"}, {"content_type": "text/html"}, ["content-type"]),
        ({"content_type": "a/b"}, {}, ["content-type"]),
        ({}, {"access_control_allow_origin": "*"}, ["access-control-allow-origin"]),
        ({"date": "a", "server": "b"}, {"date": "c"}, []),
        ({}, {"ratelimit_limit": "10000"}, []),
        ({"ratelimit_limit": "10000"}, {"ratelimit_limit": "100"}, ["ratelimit-limit"]),
        ({"ratelimit_limit": "10000"}, {}, ["ratelimit-limit"]),
        ({"ratelimit_remaining": "7"}, {"ratelimit_remaining": "8"}, []),
        ({"retry_after": "7"}, {"retry_after": "8"}, []),
        ({"retry_after": "7"}, {}, ["retry-after"]),
    ],
)
def test_only_listed_headers_are_compared(
    control: dict[str, str], candidate: dict[str, str], wanted: list[str]
) -> None:
    assert list_answer_differences(build_answer(**control), build_answer(**candidate)) == [
        ["header", f"@header.{name}"] for name in wanted
    ]


# Any document

KEYS = st.sampled_from(["amount", "email", "payments", "status", "x", "a b", "@status", "é", ""])
TEXTS = st.text(max_size=8).filter(lambda text: not ID_IN_TEXT.search(text))
NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20), st.decimals(allow_nan=False, allow_infinity=False, places=2)
)
LEAVES = st.one_of(st.none(), st.booleans(), TEXTS, NUMBERS)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=20,
)


def dump_document(document: Any) -> str:
    if isinstance(document, dict):
        pairs = (f"{json.dumps(key)}:{dump_document(value)}" for key, value in document.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(document, list):
        return f"[{','.join(map(dump_document, document))}]"
    is_plain = document is None or isinstance(document, str | bool)
    return json.dumps(document) if is_plain else format(document, "f" if document else "")


def list_paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    here = [path]
    if isinstance(document, dict):
        return here + [
            one for key, value in document.items() for one in list_paths(value, (*path, key))
        ]
    if isinstance(document, list):
        return here + [
            one for index, value in enumerate(document) for one in list_paths(value, (*path, index))
        ]
    return here


def value_at(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def name_type(value: Any) -> str:
    if value is None or isinstance(value, bool | str | list | dict):
        return type(value).__name__
    return "number"


@given(DOCUMENTS)
def test_document_equals_itself_with_any_whitespace(document: Any) -> None:
    text = dump_document(document)
    assert find_differences(text, text) == []
    assert find_differences(text, f" {text}\n") == []


@given(DOCUMENTS, DOCUMENTS)
def test_differences_are_symmetric(one: Any, other: Any) -> None:
    there, back = (
        find_differences(dump_document(one), dump_document(other)),
        find_differences(dump_document(other), dump_document(one)),
    )
    assert bool(there) == bool(back) == (canonicalize(one) != canonicalize(other))


def canonicalize(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: canonicalize(value) for key, value in document.items()}
    if isinstance(document, list):
        return [canonicalize(value) for value in document]
    return (name_type(document), dump_document(document))


Mutation = Callable[[Any, Any], tuple[Any, str, tuple[Any, ...]] | None]


def replace_value(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.deepcopy(document)
    value_at(copied, path[:-1])[path[-1]] = value
    return copied


@given(DOCUMENTS, st.data())
@settings(max_examples=300)
def test_changed_value_or_type_is_found_and_classified(document: Any, data: Any) -> None:
    path = data.draw(st.sampled_from(list_paths(document)))
    old, new = value_at(document, path), data.draw(LEAVES)
    assume(canonicalize(old) != canonicalize(new))
    assume(not isinstance(old, str | type(None)) or old != "" or new != "")
    (difference,) = find_differences(
        dump_document(document), dump_document(replace_value(document, path, new))
    )
    assert difference.kind == ("value" if name_type(old) == name_type(new) else "type")
    assert difference.control_path == path


@given(DOCUMENTS, KEYS, LEAVES, st.data())
def test_added_or_removed_field_is_found_and_classified(
    document: Any, key: str, value: Any, data: Any
) -> None:
    objects = [path for path in list_paths(document) if isinstance(value_at(document, path), dict)]
    assume(objects)
    path = data.draw(st.sampled_from(objects))
    assume(key not in value_at(document, path))
    more = copy.deepcopy(document)
    value_at(more, path)[key] = value
    (difference,) = find_differences(dump_document(document), dump_document(more))
    assert (difference.kind, difference.candidate_path) == ("extra", (*path, key))
    (difference,) = find_differences(dump_document(more), dump_document(document))
    assert (difference.kind, difference.control_path) == ("missing", (*path, key))


@given(DOCUMENTS, LEAVES, st.data())
def test_added_or_removed_item_is_found_and_classified(
    document: Any, value: Any, data: Any
) -> None:
    lists = [path for path in list_paths(document) if isinstance(value_at(document, path), list)]
    assume(lists)
    path = data.draw(st.sampled_from(lists))
    assume(canonicalize(value) not in canonicalize(value_at(document, path)))
    more = copy.deepcopy(document)
    index = data.draw(st.integers(0, len(value_at(document, path))))
    value_at(more, path).insert(index, value)
    (difference,) = find_differences(dump_document(document), dump_document(more))
    assert (difference.kind, difference.candidate_path) == ("extra", (*path, index))
    (difference,) = find_differences(dump_document(more), dump_document(document))
    assert (difference.kind, difference.control_path) == ("missing", (*path, index))


@given(st.lists(LEAVES, min_size=2, max_size=6), st.data())
def test_reordered_items_are_one_order_difference(items: list[Any], data: Any) -> None:
    first, second = sorted(
        data.draw(st.lists(st.integers(0, len(items) - 1), min_size=2, max_size=2, unique=True))
    )
    assume(canonicalize(items[first]) != canonicalize(items[second]))
    moved = [*items]
    moved[first], moved[second] = items[second], items[first]
    (difference,) = find_differences(
        dump_document({"payments": items}), dump_document({"payments": moved})
    )
    assert (difference.kind, difference.normal_path) == ("order", "payments")


ODD_KEYS = st.one_of(
    st.sampled_from(["errors", "code", "id", "name", "amount"]), st.text(max_size=4)
)
ODD_DOCUMENTS = st.recursive(
    st.one_of(LEAVES, st.text(max_size=8), st.from_regex(r"[RBP]-[a-c]", fullmatch=True)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(ODD_KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    ODD_DOCUMENTS,
    ODD_DOCUMENTS,
    st.sampled_from([200, 404, 500]),
    st.sampled_from([200, 404]),
    st.booleans(),
)
def test_any_two_answers_can_be_reported(
    one: Any, other: Any, status: int, another: int, sees_all: bool
) -> None:
    differ = Differ(Rules(), IdMap(), key_order=True)
    viewer = ExampleBuilder(Redactor(("a-secret-key",), sees_all))
    step = Step("GET", Template(("/v1/recipients",)), "input", 1)
    control, candidate = (
        build_answer(status, dump_document(one)),
        build_answer(another, dump_document(other)),
    )
    for difference in differ.compare_answers(control, candidate):
        made = viewer.build_example(step, "GET /", (status, another), difference, differ.are_equal)
        assert made.control.text is not None
        assert viewer.redact_normal_path(difference)


IDS = st.builds(
    "{}-{}".format, st.sampled_from("RBP"), st.text("abcXYZ019", min_size=1, max_size=6)
)


@given(st.lists(IDS, min_size=1, max_size=8), st.data())
def test_consistently_renamed_ids_are_no_difference(ids: list[str], data: Any) -> None:
    names = data.draw(st.permutations([f"n{number}" for number in range(len(set(ids)))]))
    renamed = {
        id_: f"{id_.partition('-')[0]}-{name}"
        for id_, name in zip(sorted(set(ids)), names, strict=True)
    }
    document = [{"id": id_, "message": f"made {id_}", "n": n} for n, id_ in enumerate(ids)]
    other = [
        {"id": renamed[id_], "message": f"made {renamed[id_]}", "n": n} for n, id_ in enumerate(ids)
    ]
    assert find_differences(dump_document(document), dump_document(other)) == []


@given(st.lists(IDS, min_size=2, max_size=8, unique=True), st.data())
def test_id_shared_by_two_objects_is_a_difference(ids: list[str], data: Any) -> None:
    kinds = {id_[0] for id_ in ids}
    same = [[id_ for id_ in ids if id_[0] == kind] for kind in sorted(kinds)]
    assume(any(len(those) > 1 for those in same))
    one, other = next(those for those in same if len(those) > 1)[:2]
    document = {str(n): {"id": id_} for n, id_ in enumerate(ids)}
    confused = {
        str(n): {"id": f"{id_[0]}-n{ids.index(one if id_ == other else id_)}"}
        for n, id_ in enumerate(ids)
    }
    (wrong,) = find_differences(dump_document(document), dump_document(confused))
    assert (wrong.kind, wrong.control_path[-1]) == ("value", "id")
    assert OBJECT_ID.fullmatch(wrong.control)
