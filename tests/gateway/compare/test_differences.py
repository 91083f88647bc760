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

PAIRS = tomllib.loads((Path(__file__).parent / "pairs.toml").read_text(encoding="utf-8"))["pair"]


def found(control: str, candidate: str, **pair: Any) -> list[Difference]:
    rules = Rules().read_rules.combine(build_rules(pair.get("rules", {}), "table"))
    differ = Differ(
        rules,
        IdMap(has_separate_ids=pair.get("ids", "paired") == "paired"),
        operation=pair.get("operation", ""),
        key_order=pair.get("key_order", False),
    )
    return differ.compare_bodies(control.encode(), candidate.encode())


@pytest.mark.parametrize("pair", PAIRS, ids=[one["name"] for one in PAIRS])
def test_a_pair_has_the_differences_that_the_table_says(pair: dict[str, Any]) -> None:
    eye = Redactor(is_unmasked=True)
    told = [
        [
            one.kind,
            one.normal_path,
            eye.redact_value((), one.control).text,
            eye.redact_value((), one.candidate).text,
        ]
        for one in found(**pair)
    ]
    wanted = sorted(pair["found"])
    assert (
        sorted(one[: len(want)] for one, want in zip(sorted(told), wanted, strict=True)) == wanted
    )


def test_a_difference_says_where_it_is_on_either_side() -> None:
    one, missing = found('{"l":["a","b",{"x":1}]}', '{"l":["b",{"x":2}]}')
    assert (missing.kind, missing.control_path) == ("missing", ("l", 0))
    assert (one.control_path, one.candidate_path, one.normal_path) == (
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
def test_what_looks_alike_is_told_in_words(control: str, candidate: str, note: str) -> None:
    assert [one.note for one in found(control, candidate)] == [note]


def test_a_document_nested_deeper_than_can_be_walked_is_compared_as_text() -> None:
    for depth, kind in ((100, "value"), (101, "value"), (100_000, "value")):
        deep = "[" * depth + "1" + "]" * depth
        assert found(deep, deep) == []
        assert [one.kind for one in found(deep, deep.replace("1", "2"))] == [kind]
    assert [one.kind for one in found("[" * 101 + "]" * 101, "[]")] == ["type"]


# Answers


def answer(status: int = 200, body: str = '{"ok":true}', **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, body.encode())


def of_answers(control: Answer, candidate: Answer) -> list[list[Any]]:
    differ = Differ(Rules().read_rules, IdMap())
    return [[one.kind, one.normal_path] for one in differ.compare_answers(control, candidate)]


REFUSAL = '{"ok":false,"errors":[{"code":"invalid_field","message":"no","field":"email"}]}'


def test_a_refusal_where_control_agrees_is_one_difference_and_names_its_code() -> None:
    differ = Differ(Rules(), IdMap())
    (one,) = differ.compare_answers(answer(), answer(406, REFUSAL))
    assert (one.kind, one.normal_path, one.control, one.candidate) == (
        "status",
        "@status",
        200,
        406,
    )
    assert one.note == "candidate says invalid_field"


@pytest.mark.parametrize(
    "errors", [None, 1, "x", {}, [1], [None], [{}], [{"code": 1}], [{"code": "Ada Lovelace"}]]
)
def test_a_refusal_of_any_other_shape_names_no_code(errors: Any) -> None:
    differ = Differ(Rules(), IdMap())
    (one,) = differ.compare_answers(answer(), answer(406, json.dumps({"errors": errors})))
    assert (one.kind, one.note) == ("status", "")


def test_two_refusals_are_compared_in_their_bodies_too() -> None:
    other = REFUSAL.replace("invalid_field", "empty_field")
    assert of_answers(answer(406, REFUSAL), answer(400, other)) == [
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
def test_the_headers_that_matter_are_compared_and_no_others(
    control: dict[str, str], candidate: dict[str, str], wanted: list[str]
) -> None:
    assert of_answers(answer(**control), answer(**candidate)) == [
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


def text_of(document: Any) -> str:
    if isinstance(document, dict):
        pairs = (f"{json.dumps(key)}:{text_of(value)}" for key, value in document.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(document, list):
        return f"[{','.join(map(text_of, document))}]"
    is_plain = document is None or isinstance(document, str | bool)
    return json.dumps(document) if is_plain else format(document, "f" if document else "")


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    here = [path]
    if isinstance(document, dict):
        return here + [
            one for key, value in document.items() for one in places(value, (*path, key))
        ]
    if isinstance(document, list):
        return here + [
            one for index, value in enumerate(document) for one in places(value, (*path, index))
        ]
    return here


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool | str | list | dict):
        return type(value).__name__
    return "number"


@given(DOCUMENTS)
def test_a_document_equals_itself_however_it_is_spaced(document: Any) -> None:
    text = text_of(document)
    assert found(text, text) == []
    assert found(text, f" {text}\n") == []


@given(DOCUMENTS, DOCUMENTS)
def test_two_documents_differ_one_way_if_they_differ_the_other_way(one: Any, other: Any) -> None:
    there, back = found(text_of(one), text_of(other)), found(text_of(other), text_of(one))
    assert bool(there) == bool(back) == (canonical(one) != canonical(other))


def canonical(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: canonical(value) for key, value in document.items()}
    if isinstance(document, list):
        return [canonical(value) for value in document]
    return (kind_of(document), text_of(document))


Mutation = Callable[[Any, Any], tuple[Any, str, tuple[Any, ...]] | None]


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.deepcopy(document)
    at(copied, path[:-1])[path[-1]] = value
    return copied


@given(DOCUMENTS, st.data())
@settings(max_examples=300)
def test_a_value_or_type_that_is_changed_is_found_and_typed(document: Any, data: Any) -> None:
    path = data.draw(st.sampled_from(places(document)))
    old, new = at(document, path), data.draw(LEAVES)
    assume(canonical(old) != canonical(new))
    assume(not isinstance(old, str | type(None)) or old != "" or new != "")
    (one,) = found(text_of(document), text_of(replaced(document, path, new)))
    assert one.kind == ("value" if kind_of(old) == kind_of(new) else "type")
    assert one.control_path == path


@given(DOCUMENTS, KEYS, LEAVES, st.data())
def test_a_field_that_is_added_or_taken_is_found_and_typed(
    document: Any, key: str, value: Any, data: Any
) -> None:
    objects = [path for path in places(document) if isinstance(at(document, path), dict)]
    assume(objects)
    path = data.draw(st.sampled_from(objects))
    assume(key not in at(document, path))
    more = copy.deepcopy(document)
    at(more, path)[key] = value
    (one,) = found(text_of(document), text_of(more))
    assert (one.kind, one.candidate_path) == ("extra", (*path, key))
    (one,) = found(text_of(more), text_of(document))
    assert (one.kind, one.control_path) == ("missing", (*path, key))


@given(DOCUMENTS, LEAVES, st.data())
def test_an_item_that_is_added_or_taken_is_found_and_typed(
    document: Any, value: Any, data: Any
) -> None:
    lists = [path for path in places(document) if isinstance(at(document, path), list)]
    assume(lists)
    path = data.draw(st.sampled_from(lists))
    assume(canonical(value) not in canonical(at(document, path)))
    more = copy.deepcopy(document)
    index = data.draw(st.integers(0, len(at(document, path))))
    at(more, path).insert(index, value)
    (one,) = found(text_of(document), text_of(more))
    assert (one.kind, one.candidate_path) == ("extra", (*path, index))
    (one,) = found(text_of(more), text_of(document))
    assert (one.kind, one.control_path) == ("missing", (*path, index))


@given(st.lists(LEAVES, min_size=2, max_size=6), st.data())
def test_items_that_change_places_are_one_difference_of_order(items: list[Any], data: Any) -> None:
    first, second = sorted(
        data.draw(st.lists(st.integers(0, len(items) - 1), min_size=2, max_size=2, unique=True))
    )
    assume(canonical(items[first]) != canonical(items[second]))
    moved = [*items]
    moved[first], moved[second] = items[second], items[first]
    (one,) = found(text_of({"payments": items}), text_of({"payments": moved}))
    assert (one.kind, one.normal_path) == ("order", "payments")


ODD_KEYS = st.one_of(
    st.sampled_from(["errors", "code", "id", "name", "amount"]), st.text(max_size=4)
)
ODD = st.recursive(
    st.one_of(LEAVES, st.text(max_size=8), st.from_regex(r"[RBP]-[a-c]", fullmatch=True)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(ODD_KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(ODD, ODD, st.sampled_from([200, 404, 500]), st.sampled_from([200, 404]), st.booleans())
def test_whatever_two_sides_answer_a_report_can_be_made_of_it(
    one: Any, other: Any, status: int, another: int, sees_all: bool
) -> None:
    differ = Differ(Rules(), IdMap(), key_order=True)
    viewer = ExampleBuilder(Redactor(("a-secret-key",), sees_all))
    step = Step("GET", Template(("/v1/recipients",)), "input", 1)
    control, candidate = answer(status, text_of(one)), answer(another, text_of(other))
    for difference in differ.compare_answers(control, candidate):
        made = viewer.build_example(step, "GET /", (status, another), difference, differ.are_equal)
        assert made.control.text is not None
        assert viewer.redact_normal_path(difference)


IDS = st.builds(
    "{}-{}".format, st.sampled_from("RBP"), st.text("abcXYZ019", min_size=1, max_size=6)
)


@given(st.lists(IDS, min_size=1, max_size=8), st.data())
def test_ids_that_are_renamed_throughout_are_no_difference(ids: list[str], data: Any) -> None:
    names = data.draw(st.permutations([f"n{number}" for number in range(len(set(ids)))]))
    renamed = {
        id_: f"{id_.partition('-')[0]}-{name}"
        for id_, name in zip(sorted(set(ids)), names, strict=True)
    }
    document = [{"id": id_, "message": f"made {id_}", "n": n} for n, id_ in enumerate(ids)]
    other = [
        {"id": renamed[id_], "message": f"made {renamed[id_]}", "n": n} for n, id_ in enumerate(ids)
    ]
    assert found(text_of(document), text_of(other)) == []


@given(st.lists(IDS, min_size=2, max_size=8, unique=True), st.data())
def test_an_id_that_is_given_to_two_objects_is_a_difference(ids: list[str], data: Any) -> None:
    kinds = {id_[0] for id_ in ids}
    same = [[id_ for id_ in ids if id_[0] == kind] for kind in sorted(kinds)]
    assume(any(len(those) > 1 for those in same))
    one, other = next(those for those in same if len(those) > 1)[:2]
    document = {str(n): {"id": id_} for n, id_ in enumerate(ids)}
    confused = {
        str(n): {"id": f"{id_[0]}-n{ids.index(one if id_ == other else id_)}"}
        for n, id_ in enumerate(ids)
    }
    (wrong,) = found(text_of(document), text_of(confused))
    assert (wrong.kind, wrong.control_path[-1]) == ("value", "id")
    assert OBJECT_ID.fullmatch(wrong.control)
