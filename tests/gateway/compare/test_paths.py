"""JSON paths: formatting, normalization and matching by rules."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gateway.compare import paths
from gateway.compare.requests import identify_operation


@pytest.mark.parametrize(
    ("path", "expected_text", "expected_normal_path"),
    [
        ((), "$", "$"),
        (("payments", 3, "sourceAmount"), "payments[3].sourceAmount", "payments[].sourceAmount"),
        ((0, "a"), "[0].a", "[].a"),
        (("by", "R-abc", "n"), "by.R-abc.n", "by.{id}.n"),
        (("a b", "c"), '["a b"].c', '["a b"].c'),
        (("@status",), '["@status"]', '["@status"]'),
        (paths.STATUS_PATH, "@status", "@status"),
        (paths.build_header_path("retry-after"), "@header.retry-after", "@header.retry-after"),
    ],
)
def test_path_is_formatted_and_normalized(
    path: paths.Path, expected_text: str, expected_normal_path: str
) -> None:
    assert (paths.format_path(path), paths.normalize_path(path)) == (
        expected_text,
        expected_normal_path,
    )


@pytest.mark.parametrize(
    ("path", "expected_parents"),
    [
        ("$", []),
        ("@status", []),
        ("@header.retry-after", []),
        ("ok", ["$"]),
        ("[].a", ["[]", "$"]),
        ('a["b.c"][].d', ['a["b.c"][]', 'a["b.c"]', "a", "$"]),
        ("by.{id}.n", ["by.{id}", "by", "$"]),
    ],
)
def test_enclosing_object_of_path(path: str, expected_parents: list[str]) -> None:
    assert [*paths.iter_parent_paths(path)] == expected_parents


@pytest.mark.parametrize(
    ("text", "path"),
    [("recipient.id", ("recipient", "id")), ("a[0][1].b", ("a", 0, 1, "b")), ("[2].x", (2, "x"))],
)
def test_scenario_path_is_parsed(text: str, path: paths.Path) -> None:
    assert paths.parse_scenario_path(text) == path


@pytest.mark.parametrize("text", ["", ".a", "a.", "a..b", "a[x]", "a[0]b", "a[0"])
def test_invalid_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        paths.parse_scenario_path(text)


@pytest.mark.parametrize(
    ("pattern", "matching_paths", "other_paths"),
    [
        ("recipient.id", ["recipient.id"], ["xrecipient.id", "recipient.id.x", "recipientxid"]),
        ("payments[].id", ["payments[].id"], ["payments.id"]),
        ("**.id", ["id", "a.id", "a[].b.id", "[].id"], ["aid", "id.x", "a.did"]),
        ("balances.*.amount", ["balances.USD.amount"], ["balances.amount", "balances.a.b.amount"]),
        ("a.**", ["a", "a.b", "a.b[].c", "a[].x"], ["ab", "b.a"]),
        ("**", ["a", "a[].b", "[]"], []),
        ("@header.ratelimit-*", ["@header.ratelimit-limit"], ["@header.retry-after"]),
    ],
)
def test_rule_matches_the_paths_it_names(
    pattern: str, matching_paths: list[str], other_paths: list[str]
) -> None:
    matched_paths = [
        path
        for path in [*matching_paths, *other_paths]
        if paths.compile_path_pattern(pattern).fullmatch(path)
    ]
    assert matched_paths == matching_paths


@pytest.mark.parametrize(
    ("method", "target", "name", "path"),
    [
        ("GET", "/v1/recipients?page=1", "list_recipients", "/v1/recipients"),
        ("GET", "/v1/recipients/R-1/", "read_recipient", "/v1/recipients/{id}"),
        (
            "GET",
            "/v1/profile/balances/wallet",
            "read_wallet_balance",
            "/v1/profile/balances/wallet",
        ),
        ("PUT", "/v1/recipients/R-1", "", "/v1/recipients/{id}"),
        ("GET", "/v1/recipients/R-1/ada@example.com", "", "/v1/recipients/{id}/…"),
    ],
)
def test_request_is_identified_by_operation_without_ids(
    method: str, target: str, name: str, path: str
) -> None:
    identified_operation = identify_operation(method, target)
    assert (identified_operation.name, identified_operation.path) == (name, path)


def test_wheel_contains_page(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "gateway/compare/page.html.j2" in names
