"""Vocabulary of each side: words are translated only at fields that a shape marks."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from mappings import current, legacy
from mappings.effects import Vocabulary
from mappings.field_types import Word, WordKey
from mappings.vocabulary import (
    VocabularyTranslator,
    build_current_translator,
    build_legacy_translator,
)

CUSTOM_VOCABULARY = Vocabulary(
    legacy_wallet="paypal",
    legacy_service="acme",
    legacy_service_total="AcmeTotal",
    legacy_avatar_url="gravatarUrl",
)
LEGACY = build_legacy_translator(CUSTOM_VOCABULARY)
NEUTRAL = build_legacy_translator(Vocabulary())


class Inner(TypedDict, total=False):
    method: Annotated[str | None, Word("wallet")]
    text: str


class Shape(TypedDict, total=False):
    method: Annotated[str, Word("wallet")]
    text: str
    inner: Inner | None
    inners: list[Inner]
    wallet: Annotated[Inner | None, WordKey("wallet")]
    avatarUrl: Annotated[str, WordKey("avatar_url")]
    anything: Any


TRANSLATOR = VocabularyTranslator({"wallet": "paypal", "avatar_url": "gravatarUrl"})

PAIRS = [
    ({"method": "wallet"}, {"method": "paypal"}),
    ({"method": "bank"}, {"method": "bank"}),
    ({"method": None}, {"method": None}),
    ({"method": 5}, {"method": 5}),
    ({"method": ["wallet"]}, {"method": ["wallet"]}),
    ({"text": "wallet"}, {"text": "wallet"}),
    (
        {"inner": {"method": "wallet", "text": "wallet"}},
        {"inner": {"method": "paypal", "text": "wallet"}},
    ),
    ({"inner": None}, {"inner": None}),
    ({"inner": "wallet"}, {"inner": "wallet"}),
    ({"inners": [{"method": "wallet"}, {}]}, {"inners": [{"method": "paypal"}, {}]}),
    ({"inners": {"method": "wallet"}}, {"inners": {"method": "wallet"}}),
    ({"wallet": {"method": "wallet"}}, {"paypal": {"method": "paypal"}}),
    ({"wallet": None}, {"paypal": None}),
    ({"avatarUrl": "wallet"}, {"gravatarUrl": "wallet"}),
    (
        {"anything": {"wallet": {"method": "wallet"}}},
        {"anything": {"wallet": {"method": "wallet"}}},
    ),
    ({"unknown": {"method": "wallet"}}, {"unknown": {"method": "wallet"}}),
]


@pytest.mark.parametrize(
    ("neutral_value", "configured_value"), PAIRS, ids=[str(value_pair[1]) for value_pair in PAIRS]
)
def test_words_are_translated_only_at_marked_fields(
    neutral_value: Any, configured_value: Any
) -> None:
    assert TRANSLATOR.translate_from_neutral(Shape, neutral_value) == configured_value
    assert TRANSLATOR.translate_to_neutral(Shape, configured_value) == neutral_value


def test_word_inside_other_text_is_not_translated() -> None:
    for text in ("wallets", "my wallet", "WALLET", "wallet ", "e-wallet"):
        assert TRANSLATOR.translate_from_neutral(Shape, {"method": text}) == {"method": text}


def test_field_order_is_kept() -> None:
    client_fields = {"text": 1, "paypal": {}, "method": 2, "gravatarUrl": 3}
    assert list(TRANSLATOR.translate_to_neutral(Shape, client_fields)) == [
        "text",
        "wallet",
        "method",
        "avatarUrl",
    ]
    assert list(
        TRANSLATOR.translate_from_neutral(
            Shape, TRANSLATOR.translate_to_neutral(Shape, client_fields)
        )
    ) == list(client_fields)


def test_default_field_name_is_ignored_if_configured_otherwise() -> None:
    """A client's ``wallet`` beside its ``paypal`` must not take its place."""
    client_fields = {"paypal": {"text": "mine"}, "wallet": {"text": "not mine"}}
    assert TRANSLATOR.translate_to_neutral(Shape, client_fields) == {"wallet": {"text": "mine"}}
    assert TRANSLATOR.translate_to_neutral(Shape, dict(reversed(client_fields.items()))) == {
        "wallet": {"text": "mine"}
    }


def test_value_without_shape_is_unchanged() -> None:
    assert TRANSLATOR.translate_to_neutral(None, {"paypal": "paypal"}) == {"paypal": "paypal"}
    assert TRANSLATOR.translate_from_neutral(None, {"wallet": "wallet"}) == {"wallet": "wallet"}


@pytest.mark.parametrize("value", [None, [], "wallet", 5])
def test_non_object_in_place_of_object_is_unchanged(value: Any) -> None:
    assert TRANSLATOR.translate_to_neutral(Shape, value) == value
    assert TRANSLATOR.translate_from_neutral(Shape, value) == value


def test_input_is_not_modified() -> None:
    original = {"wallet": {"method": "wallet"}, "inners": [{"method": "wallet"}]}
    TRANSLATOR.translate_from_neutral(Shape, original)
    assert original == {"wallet": {"method": "wallet"}, "inners": [{"method": "wallet"}]}


# Names of fields


@pytest.mark.parametrize(
    ("body_type", "neutral_path", "configured_path"),
    [
        (Shape, "wallet.text", "paypal.text"),
        (Shape, "inners[3].method", "inners[3].method"),
        (Shape, "text", "text"),
        (Shape, "unknown.wallet", "unknown.wallet"),
        (Shape, "text.wallet", "text.wallet"),
        (Shape, "avatarUrl", "gravatarUrl"),
        (None, "wallet", "wallet"),
        (
            legacy.RecipientBody,
            "payout.accounts.wallet.address",
            "payout.accounts.paypal.address",
        ),
        (legacy.RecipientBody, "payout.accounts.wallet", "payout.accounts.paypal"),
        (legacy.RecipientBody, "payout.accounts.bank.name", "payout.accounts.bank.name"),
        (legacy.PayoutBody, "accounts.wallet.address", "accounts.paypal.address"),
        (legacy.PayoutBody, "primary.method", "primary.method"),
    ],
)
def test_full_field_name_is_translated(
    body_type: Any, neutral_path: str, configured_path: str
) -> None:
    assert LEGACY.translate_field_path(body_type, neutral_path) == configured_path
    assert NEUTRAL.translate_field_path(body_type, neutral_path) == neutral_path


# Labels, and words of one side

LABELS = Vocabulary(
    legacy_wallet="paypal",
    legacy_wallet_method_display="PayPal",
    legacy_bank_method_display="Bank transfer",
    legacy_wallet_display_name="PAYPAL",
    legacy_bank_display_name="Local bank",
    legacy_wallet_account_type="PayPaL",
    legacy_service_account_type="AcMe",
    current_wallet="payco",
)


def test_summary_label_is_translated_to_client_words() -> None:
    """Capitals do not matter; a word that is not the wallet's is unchanged."""
    current_answer = {
        "batch": {
            "methods": {
                "payco": {"accountType": "PAYCO", "displayName": "PayCo"},
                "bank-transfer": {"accountType": "Rails", "displayName": "bank transfer"},
            }
        }
    }
    neutral_summary = build_current_translator(LABELS).translate_to_neutral(
        current.SummaryAnswer, current_answer
    )["batch"]
    assert build_legacy_translator(LABELS).translate_from_neutral(legacy.Summary, neutral_summary)[
        "methods"
    ] == {
        "paypal": {"accountType": "PayPaL", "displayName": "PAYPAL"},
        "bank-transfer": {"accountType": "Rails", "displayName": "Local bank"},
    }


def test_summary_label_is_unchanged_if_both_sides_use_the_same_word() -> None:
    shared_vocabulary = Vocabulary(legacy_wallet="paypal", current_wallet="paypal")
    current_answer = {
        "batch": {"methods": {"paypal": {"accountType": "PayPal", "displayName": "PayPal"}}}
    }
    neutral_summary = build_current_translator(shared_vocabulary).translate_to_neutral(
        current.SummaryAnswer, current_answer
    )["batch"]
    assert (
        build_legacy_translator(shared_vocabulary).translate_from_neutral(
            legacy.Summary, neutral_summary
        )
        == current_answer["batch"]
    )


def test_default_word_is_invalid_if_client_uses_another() -> None:
    for body_type, name in (
        (legacy.RecipientsQuery, "payoutMethod"),
        (legacy.PrimaryBody, "method"),
    ):
        assert LEGACY.translate_to_neutral(body_type, {name: "wallet"})[name] not in (
            "wallet",
            "paypal",
        )
        assert NEUTRAL.translate_to_neutral(body_type, {name: "wallet"}) == {name: "wallet"}
        assert LEGACY.translate_to_neutral(body_type, {name: "bank"}) == {name: "bank"}


# Random words and values

word_strategies = st.sampled_from(
    ["payout", "accounts", "paypal", "bank", "method", "primary", "name", "gravatarUrl", "address"]
)
value_strategies = st.recursive(
    st.one_of(st.none(), st.sampled_from(["paypal", "bank", "x"]), st.integers()),
    lambda children: st.one_of(st.lists(children), st.dictionaries(word_strategies, children)),
)


@given(value_strategies)
def test_translation_round_trips(value: Any) -> None:
    for answer_type in (legacy.Recipient, legacy.RecipientAnswer, legacy.Payout):
        assert (
            LEGACY.translate_from_neutral(
                answer_type, LEGACY.translate_to_neutral(answer_type, value)
            )
            == value
        )


@given(value_strategies)
def test_default_vocabulary_translates_nothing(value: Any) -> None:
    for answer_type in (legacy.Recipient, legacy.RecipientBody, current.Recipient):
        assert NEUTRAL.translate_to_neutral(answer_type, value) is value
        assert NEUTRAL.translate_from_neutral(answer_type, value) is value
