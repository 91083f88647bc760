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

from gateway.compare.differences import Differ, Difference
from gateway.compare.endpoints import Answer
from gateway.compare.findings import Findings
from gateway.compare.id_map import IdMap
from gateway.compare.masking import Redactor
from gateway.compare.requests import ID_IN_TEXT, OBJECT_ID
from gateway.compare.rules import Rules, build_rules
from gateway.compare.steps import Step, Template

BODY_PAIRS = tomllib.loads((Path(__file__).parent / "pairs.toml").read_text(encoding="utf-8"))[
    "pair"
]


def find_differences(control: str, candidate: str, **options: Any) -> list[Difference]:
    rules = Rules().rules_for_runs_without_writes.combine(
        build_rules(options.get("rules", {}), "table")
    )
    comparer = Differ(
        rules,
        IdMap(has_separate_ids=options.get("ids", "paired") == "paired"),
        operation=options.get("operation", ""),
    )
    return comparer.compare_bodies(control.encode(), candidate.encode())


@pytest.mark.parametrize(
    "body_pair", BODY_PAIRS, ids=[difference["name"] for difference in BODY_PAIRS]
)
def test_body_pair_has_listed_differences(body_pair: dict[str, Any]) -> None:
    redactor = Redactor(is_unmasked=True)
    found_differences = [
        [
            difference.kind,
            difference.normal_path,
            redactor.redact_value((), difference.control)["text"],
            redactor.redact_value((), difference.candidate)["text"],
        ]
        for difference in find_differences(**body_pair)
    ]
    expected_differences = sorted(body_pair["found"])
    assert (
        sorted(
            difference[: len(expected)]
            for difference, expected in zip(
                sorted(found_differences), expected_differences, strict=True
            )
        )
        == expected_differences
    )


def test_difference_names_path_on_each_side() -> None:
    difference, missing_item = find_differences('{"l":["a","b",{"x":1}]}', '{"l":["b",{"x":2}]}')
    assert (missing_item.kind, missing_item.control_path) == ("missing", ("l", 0))
    assert (difference.control_path, difference.candidate_path, difference.normal_path) == (
        ("l", 2, "x"),
        ("l", 1, "x"),
        "l[].x",
    )


@pytest.mark.parametrize(
    ("control", "candidate", "expected_note"),
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
def test_similar_values_are_described_in_words(
    control: str, candidate: str, expected_note: str
) -> None:
    assert [difference.note for difference in find_differences(control, candidate)] == [
        expected_note
    ]


def test_document_nested_too_deep_is_compared_as_text() -> None:
    for depth, kind in ((100, "value"), (101, "value"), (100_000, "value")):
        nested_text = "[" * depth + "1" + "]" * depth
        assert find_differences(nested_text, nested_text) == []
        assert [
            difference.kind
            for difference in find_differences(nested_text, nested_text.replace("1", "2"))
        ] == [kind]
    assert [difference.kind for difference in find_differences("[" * 101 + "]" * 101, "[]")] == [
        "type"
    ]


# Answers


def build_answer(status: int = 200, body: str = '{"ok":true}', **headers: str) -> Answer:
    named_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named_headers, body.encode())


def list_answer_differences(control: Answer, candidate: Answer) -> list[list[Any]]:
    comparer = Differ(Rules().rules_for_runs_without_writes, IdMap())
    return [
        [difference.kind, difference.normal_path]
        for difference in comparer.compare_answers(control, candidate)
    ]


REFUSAL = '{"ok":false,"errors":[{"code":"invalid_field","message":"no","field":"email"}]}'


def test_refusal_by_candidate_is_one_difference_with_its_code() -> None:
    comparer = Differ(Rules(), IdMap())
    (difference,) = comparer.compare_answers(build_answer(), build_answer(406, REFUSAL))
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
    comparer = Differ(Rules(), IdMap())
    (difference,) = comparer.compare_answers(
        build_answer(), build_answer(406, json.dumps({"errors": errors}))
    )
    assert (difference.kind, difference.note) == ("status", "")


def test_bodies_of_two_refusals_are_compared() -> None:
    other_refusal = REFUSAL.replace("invalid_field", "empty_field")
    assert list_answer_differences(
        build_answer(406, REFUSAL), build_answer(400, other_refusal)
    ) == [
        ["status", "@status"],
        ["value", "errors[].code"],
    ]


@pytest.mark.parametrize(
    ("control", "candidate", "expected_headers"),
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
    control: dict[str, str], candidate: dict[str, str], expected_headers: list[str]
) -> None:
    assert list_answer_differences(build_answer(**control), build_answer(**candidate)) == [
        ["header", f"@header.{name}"] for name in expected_headers
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
    lambda children: st.one_of(
        st.lists(children, max_size=4), st.dictionaries(KEYS, children, max_size=4)
    ),
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
    paths = [path]
    if isinstance(document, dict):
        return paths + [
            nested_path
            for key, value in document.items()
            for nested_path in list_paths(value, (*path, key))
        ]
    if isinstance(document, list):
        return paths + [
            nested_path
            for index, value in enumerate(document)
            for nested_path in list_paths(value, (*path, index))
        ]
    return paths


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
def test_differences_are_symmetric(control: Any, candidate: Any) -> None:
    forward_differences, reverse_differences = (
        find_differences(dump_document(control), dump_document(candidate)),
        find_differences(dump_document(candidate), dump_document(control)),
    )
    assert (
        bool(forward_differences)
        == bool(reverse_differences)
        == (canonicalize(control) != canonicalize(candidate))
    )


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
    changed_document = copy.deepcopy(document)
    value_at(changed_document, path[:-1])[path[-1]] = value
    return changed_document


@given(DOCUMENTS, st.data())
@settings(max_examples=300, deadline=None)  # a busy machine stops for longer than 200 ms
def test_changed_value_or_type_is_found_and_classified(document: Any, data: Any) -> None:
    path = data.draw(st.sampled_from(list_paths(document)))
    old_value, new_value = value_at(document, path), data.draw(LEAVES)
    assume(canonicalize(old_value) != canonicalize(new_value))
    assume(not isinstance(old_value, str | type(None)) or old_value != "" or new_value != "")
    (difference,) = find_differences(
        dump_document(document), dump_document(replace_value(document, path, new_value))
    )
    assert difference.kind == ("value" if name_type(old_value) == name_type(new_value) else "type")
    assert difference.control_path == path


@given(DOCUMENTS, KEYS, LEAVES, st.data())
def test_added_or_removed_field_is_found_and_classified(
    document: Any, key: str, value: Any, data: Any
) -> None:
    objects = [path for path in list_paths(document) if isinstance(value_at(document, path), dict)]
    assume(objects)
    path = data.draw(st.sampled_from(objects))
    assume(key not in value_at(document, path))
    extended_document = copy.deepcopy(document)
    value_at(extended_document, path)[key] = value
    (difference,) = find_differences(dump_document(document), dump_document(extended_document))
    assert (difference.kind, difference.candidate_path) == ("extra", (*path, key))
    (difference,) = find_differences(dump_document(extended_document), dump_document(document))
    assert (difference.kind, difference.control_path) == ("missing", (*path, key))


@given(DOCUMENTS, LEAVES, st.data())
def test_added_or_removed_item_is_found_and_classified(
    document: Any, value: Any, data: Any
) -> None:
    lists = [path for path in list_paths(document) if isinstance(value_at(document, path), list)]
    assume(lists)
    path = data.draw(st.sampled_from(lists))
    assume(canonicalize(value) not in canonicalize(value_at(document, path)))
    extended_document = copy.deepcopy(document)
    index = data.draw(st.integers(0, len(value_at(document, path))))
    value_at(extended_document, path).insert(index, value)
    (difference,) = find_differences(dump_document(document), dump_document(extended_document))
    assert (difference.kind, difference.candidate_path) == ("extra", (*path, index))
    (difference,) = find_differences(dump_document(extended_document), dump_document(document))
    assert (difference.kind, difference.control_path) == ("missing", (*path, index))


@given(st.lists(LEAVES, min_size=2, max_size=6), st.data())
def test_reordered_items_are_one_order_difference(items: list[Any], data: Any) -> None:
    first, second = sorted(
        data.draw(st.lists(st.integers(0, len(items) - 1), min_size=2, max_size=2, unique=True))
    )
    assume(canonicalize(items[first]) != canonicalize(items[second]))
    reordered_items = [*items]
    reordered_items[first], reordered_items[second] = items[second], items[first]
    (difference,) = find_differences(
        dump_document({"payments": items}), dump_document({"payments": reordered_items})
    )
    assert (difference.kind, difference.normal_path) == ("order", "payments")


UNUSUAL_KEYS = st.one_of(
    st.sampled_from(["errors", "code", "id", "name", "amount"]), st.text(max_size=4)
)
UNUSUAL_DOCUMENTS = st.recursive(
    st.one_of(LEAVES, st.text(max_size=8), st.from_regex(r"[RBP]-[a-c]", fullmatch=True)),
    lambda children: st.one_of(
        st.lists(children, max_size=4), st.dictionaries(UNUSUAL_KEYS, children, max_size=4)
    ),
    max_leaves=20,
)


@given(
    UNUSUAL_DOCUMENTS,
    UNUSUAL_DOCUMENTS,
    st.sampled_from([200, 404, 500]),
    st.sampled_from([200, 404]),
    st.booleans(),
)
def test_any_two_answers_can_be_reported(
    control_body: Any, candidate_body: Any, status: int, candidate_status: int, is_unmasked: bool
) -> None:
    comparer = Differ(Rules(), IdMap())
    findings = Findings(Redactor(("a-secret-key",), is_unmasked))
    step = Step("GET", Template(("/v1/recipients",)), "input", 1)
    control, candidate = (
        build_answer(status, dump_document(control_body)),
        build_answer(candidate_status, dump_document(candidate_body)),
    )
    differences = comparer.compare_answers(control, candidate)
    findings.record_comparison(step, "GET /", (status, candidate_status), differences)
    assert sum(entry["count"] for entry in findings.list_differences()) == len(differences)


IDS = st.builds(
    "{}-{}".format, st.sampled_from("RBP"), st.text("abcXYZ019", min_size=1, max_size=6)
)


@given(st.lists(IDS, min_size=1, max_size=8), st.data())
def test_consistently_renamed_ids_are_no_difference(ids: list[str], data: Any) -> None:
    names = data.draw(st.permutations([f"n{number}" for number in range(len(set(ids)))]))
    renamed_ids = {
        id_: f"{id_.partition('-')[0]}-{name}"
        for id_, name in zip(sorted(set(ids)), names, strict=True)
    }
    document = [{"id": id_, "message": f"made {id_}", "n": n} for n, id_ in enumerate(ids)]
    renamed_document = [
        {"id": renamed_ids[id_], "message": f"made {renamed_ids[id_]}", "n": n}
        for n, id_ in enumerate(ids)
    ]
    assert find_differences(dump_document(document), dump_document(renamed_document)) == []


@given(st.lists(IDS, min_size=2, max_size=8, unique=True), st.data())
def test_id_shared_by_two_objects_is_a_difference(ids: list[str], data: Any) -> None:
    kinds = {id_[0] for id_ in ids}
    ids_by_kind = [[id_ for id_ in ids if id_[0] == kind] for kind in sorted(kinds)]
    assume(any(len(kind_ids) > 1 for kind_ids in ids_by_kind))
    first_id, second_id = next(kind_ids for kind_ids in ids_by_kind if len(kind_ids) > 1)[:2]
    document = {str(n): {"id": id_} for n, id_ in enumerate(ids)}
    confused_document = {
        str(n): {"id": f"{id_[0]}-n{ids.index(first_id if id_ == second_id else id_)}"}
        for n, id_ in enumerate(ids)
    }
    (difference,) = find_differences(dump_document(document), dump_document(confused_document))
    assert (difference.kind, difference.control_path[-1]) == ("value", "id")
    assert OBJECT_ID.fullmatch(difference.control)
