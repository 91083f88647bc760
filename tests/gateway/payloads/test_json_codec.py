import copy
import json
import pickle
import sys
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
import simplejson
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.payloads.json_codec import (
    MAX_DEPTH,
    MAX_DIGITS,
    ExactDecimal,
    JsonError,
    dumps,
    dumps_trusted,
    iterdumps_canonical,
    loads,
    loads_trusted,
)


def build_nested_json(levels: int) -> bytes:
    return (
        b'{"a":[' * (levels // 2)
        + b"[" * (levels % 2)
        + b"]" * (levels % 2)
        + b"]}" * (levels // 2)
    )


@pytest.mark.parametrize(
    "text",
    [
        "1.10", "1E5", "1e5", "1e+05", "-0.0", "0.00", "0e0", "1.0E-2", "-12.3400", "12345678901234567890",
        "0." + "123456789" * 10, "9" * 4300, "1e4300", "true", "false", "null", "[]", "{}", '""',
        '{"b":1,"a":{"b":[1,[]]}}', '"é王😀\u2028\u2029\x7f/"', '"\\"\\\\\\n\\t"', '"\\u0000"',
    ],
)  # fmt: skip
def test_json_round_trips_byte_for_byte(text: str):
    assert dumps(loads(text.encode())) == text.encode()


number_texts = st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)
strings = st.text(st.characters(codec="utf-8")).map(
    lambda text: json.dumps(text, ensure_ascii=False)
)
scalars = st.one_of(st.sampled_from(["true", "false", "null"]), number_texts, strings)


def join_array(items: list[list[str]]) -> list[str]:
    tokens = ["["]
    for item in items:
        tokens += [*item, ","]
    return [*tokens[: len(tokens) - bool(items)], "]"]


def join_object(items: dict[str, list[str]]) -> list[str]:
    tokens = ["{"]
    for key, item in items.items():
        tokens += [key, ":", *item, ","]
    return [*tokens[: len(tokens) - bool(items)], "}"]


documents = st.recursive(
    scalars.map(lambda leaf: [leaf]),
    lambda children: (
        st.lists(children, max_size=5).map(join_array)
        | st.dictionaries(strings, children, max_size=5).map(join_object)
    ),
    max_leaves=20,
)


@given(documents, st.sampled_from(["", " ", "\r\n\t "]))
@example(["-0"], "")
def test_only_whitespace_is_lost(tokens: list[str], space: str):
    compact_tokens = ["0" if token == "-0" else token for token in tokens]  # the one exception
    spaced_text = space.join(["", *tokens, ""])
    assert dumps(loads(spaced_text.encode())) == "".join(compact_tokens).encode()


@given(documents)
def test_values_equal_standard_library_values(tokens: list[str]):
    text = "".join(tokens)
    assert loads(text.encode()) == json.loads(text, parse_float=Decimal)


@given(
    st.one_of(
        st.binary(), st.text().map(str.encode), st.text('[]{}":,\\u0d8e1-. tn').map(str.encode)
    )
)
@example(b'"\\ud83d\\ude00"')
@example("ï»¿1".encode())
@example("\ufeff\ufeff1".encode())
def test_accepted_input_equals_standard_library_and_only_decode_errors_are_raised(data: bytes):
    try:
        value = loads(data)
    except JsonError:
        return
    text = data.decode("utf-8-sig")
    assert value == json.loads(text, parse_float=Decimal, parse_constant=pytest.fail)


@given(documents, strings, strings, st.sampled_from(["", " ", "\t\r\n "]))
@example(["1"], '"a"', '"a"', "")
@example(["1"], '"a"', '"a"', " ")
@example(["1"], '"a b"', '"a b"', " ")
@example(["1"], '"A"', '"\\u0041"', "")
@example(["1"], '"\\u0008"', '"\\b"', "")
def test_duplicate_key_is_refused_in_any_spelling(
    tokens: list[str], first: str, second: str, space: str
):
    value = space.join(tokens)
    text = f'{{"outer":[{space}{{{first}:{value},{space}{second}:{value}}}]}}'.encode()
    if json.loads(first) == json.loads(second):
        with pytest.raises(JsonError, match="twice"):
            loads(text)
    else:
        assert len(loads(text)["outer"][0]) == 2


def test_numbers_are_decimals_and_never_floats():
    assert [type(item) for item in loads(b"[1.10,1E5,7]")] == [Decimal, ExactDecimal, int]
    number = loads(b"1E5")
    assert number == Decimal(100_000)
    assert isinstance(number, Decimal)
    assert (number + 1).as_tuple() == Decimal(100_001).as_tuple()


def test_copied_number_keeps_its_text():
    number = loads(b"1E5")
    for copied_number in (
        copy.copy(number),
        copy.deepcopy(number),
        pickle.loads(pickle.dumps(number)),
    ):
        assert dumps(copied_number) == b"1E5"


def test_byte_order_mark_is_skipped():
    assert loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1 column 1"),
        (b" \n ", "line 2"),
        (b'{"a":1,\n"b":nope}', "not JSON: line 2 column 5"),
        (b'{"a":1}{', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"NaN", "not JSON"),
        (b"[Infinity]", "not JSON"),
        (b"-Infinity", "not JSON"),
        (b'"\x01"', "not JSON"),
        (b'"\\x"', "not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\uDC00":1}', "surrogate"),
        (b'["\\ude00\\ud83d"]', "surrogate"),
        (b'{"a":1,"b":2,"a":3}', "the key 'a' twice"),
        (b'[{"x":{"amount":1,"\\u0061mount":2}}]', "the key 'amount' twice"),
        (b"9" * (MAX_DIGITS + 1), "digits"),
        (b"-" + b"9" * 10_000_000, "digits"),
        (b"0." + b"9" * 5000, "digits"),
        (b"1e999999999", "digits"),
        (b"1e-999999999", "digits"),
        (b"1e99999999999999999999", "digits"),
        (b"[" * 10_000_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
        (build_nested_json(MAX_DEPTH + 1), "nested"),
        (b'["]]]]",' * 100 + b"1" + b"]" * 100, "nested"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_inexact_input_is_refused_with_reason(data: bytes, reason: str):
    with pytest.raises(JsonError, match=reason) as raised_error:
        loads(data)
    assert (raised_error.value.__cause__, raised_error.value.__context__) == (None, None)


def test_maximum_nesting_works_at_any_stack_depth():
    nested_text = build_nested_json(MAX_DEPTH)

    def round_trip_deeper(levels: int) -> bytes:
        return round_trip_deeper(levels - 1) if levels else dumps(loads(nested_text))

    assert round_trip_deeper(sys.getrecursionlimit() - 300) == nested_text


def test_error_contains_nothing_of_the_input():
    for data in (b'{"secret":12x}', b'{"a":"\x01secret"}', b'"secret\\q"', b'{"secret":"\\ud800"}'):
        with pytest.raises(JsonError) as raised_error:
            loads(data)
        assert "secret" not in str(raised_error.value)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        {"a": [{"b": 1.0}]},
        [float("nan")],
        b"a",
        {"a": b"b"},
        {1: 2},
        {None: 1},
        {1, 2},
        object(),
        Decimal("NaN"),
        {"a": [Decimal("-Infinity")]},
        datetime(2026, 3, 1, tzinfo=UTC),
        {"a": UUID(int=1)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_non_json_value_is_not_encoded(value: object):
    with pytest.raises(TypeError):
        dumps(value)


def test_circular_value_is_not_encoded():
    circular_list: list[object] = []
    circular_list.append(circular_list)
    with pytest.raises(TypeError, match="nested"):
        dumps(circular_list)


def test_tuples_become_arrays_and_decimals_keep_their_text():
    assert dumps({"a": (1, Decimal("1.50")), "b": Decimal(3)}) == b'{"a":[1,1.50],"b":3}'


def test_simplejson_uses_c_extension():
    assert simplejson.encoder.c_make_encoder is not None
    assert simplejson.decoder.c_scanstring is not None


def test_canonical_form_is_independent_of_field_order() -> None:
    value = loads('{"b":[1.10,{"é":null,"a":1E5}],"a":"ü","B":true}'.encode())
    reordered_value = loads('{"B":true,"a":"ü","b":[1.10,{"a":1E5,"é":null}]}'.encode())
    assert (
        b"".join(iterdumps_canonical(value))
        == b"".join(iterdumps_canonical(reordered_value))
        == dumps(reordered_value)
    )
    assert dumps_trusted(value) == dumps(value)


def test_trusted_text_round_trips():
    value = loads(
        '{"a":[1.10,1E5,-3,12345678901234567890123],"ä":"\\ud83d\\ude00","b":null}'.encode()
    )
    (number, large_number, *_) = loads_trusted(dumps_trusted(value).decode())["a"]
    assert loads_trusted(dumps_trusted(value).decode()) == value
    assert (str(number), str(large_number)) == ("1.10", "1E5")
