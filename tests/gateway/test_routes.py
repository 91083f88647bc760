"""Routing of paths to operations."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.legacy_api.routes import Routes
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Vocabulary

LISTED_PATHS = {
    ("POST", "/v1/recipients"): "create_recipient",
    ("GET", "/v1/recipients"): "list_recipients",
    ("DELETE", "/v1/recipients"): "delete_recipients",
    ("GET", "/v1/recipients/R-1"): "read_recipient",
    ("PATCH", "/v1/recipients/R-1"): "update_recipient",
    ("DELETE", "/v1/recipients/R-1"): "delete_recipient",
    ("GET", "/v1/recipients/R-1/logs"): "read_recipient_logs",
    ("GET", "/v1/recipients/R-1/payments"): "read_recipient_payments",
    ("POST", "/v1/recipients/R-1/payout-methods"): "create_payout_method",
    ("GET", "/v1/recipients/R-1/payout-methods"): "read_payout_method",
    ("PATCH", "/v1/recipients/R-1/payout-methods"): "update_payout_method",
    ("POST", "/v1/batches"): "create_batch",
    ("GET", "/v1/batches"): "list_batches",
    ("DELETE", "/v1/batches"): "delete_batches",
    ("GET", "/v1/profile/balances"): "read_balances",
    ("GET", "/v1/profile/balances/service"): "read_service_balances",
    ("GET", "/v1/profile/balances/wallet"): "read_wallet_balance",
    ("GET", "/v1/payments"): "list_payments",
}

ROUTES = Routes(Vocabulary())
match_path = ROUTES.match


@pytest.mark.parametrize(("method", "path"), LISTED_PATHS)
def test_listed_path_matches_with_and_without_trailing_slash(method: str, path: str) -> None:
    for requested_path in (path, f"{path}/"):
        route_match = match_path(requested_path)
        assert route_match is not None
        assert route_match.route.operations[method].name == LISTED_PATHS[method, path]
        assert route_match.ids == ({"id": "R-1"} if "R-1" in path else {})


def test_every_operation_has_exactly_one_route() -> None:
    routed_operations = [
        operation for route in ROUTES.routes for operation in route.operations.values()
    ]
    assert sorted(listed_operation.name for listed_operation in routed_operations) == sorted(
        listed_operation.name for listed_operation in (*OPERATIONS, *UNLISTED)
    )


@pytest.mark.parametrize(("method", "path"), LISTED_PATHS)
def test_no_path_matches_two_routes(method: str, path: str) -> None:
    assert sum(bool(route.pattern.fullmatch(path)) for route in ROUTES.routes) == 1


@pytest.mark.parametrize("length", [1, 16, 64])
def test_recipient_id_is_r_and_up_to_64_letters_and_digits(length: int) -> None:
    id_ = "R-" + ("aZ09" * 16)[:length]
    route_match = match_path(f"/v1/recipients/{id_}")
    assert route_match is not None
    assert route_match.ids == {"id": id_}


@pytest.mark.parametrize(
    "id_",
    ["", "R-", "R", "r-1", "R_1", "R-1-2", "R-1.", "R-é", "R-\uff11", "R-1\n", "\nR-1", "R-1\0", "R-1%2f", "R-1 ",
     "B-1", "A-1", "RR-1", "..", ".", "*", "R-" + "1" * 65, "%52-1", "R-1?", "R-1#", "R-1;a", "R-1/"],
)  # fmt: skip
def test_path_with_invalid_id_does_not_match(id_: str) -> None:
    assert match_path(f"/v1/recipients/{id_}/logs") is None


@pytest.mark.parametrize(
    "path",
    ["", "/", "*", "/v1", "/v1/", "/v1//recipients", "//v1/recipients", "/v1/recipients//", "/V1/recipients",
     "/v1/RECIPIENTS", "v1/recipients", "/v1/recipients\n", "\n/v1/recipients", "/v1/recipients/\n",
     "/v1/recipients?page=1", "/v1/recipients#x", "/v1/%72ecipients", "/v1/recipients%2f", "/v1/recipients/{id}",
     "/v2/recipients", "/recipients", "/v1/recipients/R-1/accounts", "/v1/recipients/R-1/logs/x",
     "/v1/recipients/R-1/payoutmethods", "/x/v1/recipients", "http://gateway/v1/recipients", "/v1.recipients"],
)  # fmt: skip
def test_unknown_path_does_not_match(path: str) -> None:
    assert match_path(path) is None


@given(st.text(max_size=80))
def test_any_text_below_recipients_matches_an_id_or_nothing(text: str) -> None:
    route_match = match_path(f"/v1/recipients/{text}")
    if route_match is None:
        return
    allowed_characters = set(string.ascii_letters + string.digits)
    for id_ in route_match.ids.values():
        assert id_.startswith("R-")
        assert set(id_[2:]) <= allowed_characters


@given(st.lists(st.sampled_from(["v1", "recipients", "R-1", "..", ".", "", "%2e", "logs", "a/b"])))
def test_path_with_dots_or_empty_segments_does_not_match(path_segments: list[str]) -> None:
    path = "/" + "/".join(path_segments)
    if match_path(path):
        assert not {"..", ".", "%2e", "a/b"} & set(path_segments)
        assert "" not in path_segments[:-1]


def test_methods_of_a_path_are_grouped() -> None:
    route_match = match_path("/v1/recipients/R-1/payout-methods")
    assert route_match is not None
    assert set(route_match.route.operations) == {"GET", "POST", "PATCH"}
