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
    current_wallet="payco",
    current_avatar_url="pictureUrl",
)
LEGACY, CURRENT, NEUTRAL = (
    build_legacy_translator(CUSTOM_VOCABULARY),
    build_current_translator(CUSTOM_VOCABULARY),
    build_legacy_translator(Vocabulary()),
)


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


SPELLING = VocabularyTranslator({"wallet": "paypal", "avatar_url": "gravatarUrl"})

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


@pytest.mark.parametrize(("neutral", "spelled"), PAIRS, ids=[str(pair[1]) for pair in PAIRS])
def test_words_are_translated_only_at_marked_fields(neutral: Any, spelled: Any) -> None:
    assert SPELLING.translate_from_neutral(Shape, neutral) == spelled
    assert SPELLING.translate_to_neutral(Shape, spelled) == neutral


def test_word_inside_other_text_is_not_translated() -> None:
    for text in ("wallets", "my wallet", "WALLET", "wallet ", "e-wallet"):
        assert SPELLING.translate_from_neutral(Shape, {"method": text}) == {"method": text}


def test_field_order_is_kept() -> None:
    sent = {"text": 1, "paypal": {}, "method": 2, "gravatarUrl": 3}
    assert list(SPELLING.translate_to_neutral(Shape, sent)) == [
        "text",
        "wallet",
        "method",
        "avatarUrl",
    ]
    assert list(
        SPELLING.translate_from_neutral(Shape, SPELLING.translate_to_neutral(Shape, sent))
    ) == list(sent)


def test_default_field_name_is_ignored_if_configured_otherwise() -> None:
    """A client's ``wallet`` beside its ``paypal`` must not take its place."""
    sent = {"paypal": {"text": "mine"}, "wallet": {"text": "not mine"}}
    assert SPELLING.translate_to_neutral(Shape, sent) == {"wallet": {"text": "mine"}}
    assert SPELLING.translate_to_neutral(Shape, dict(reversed(sent.items()))) == {
        "wallet": {"text": "mine"}
    }


def test_value_without_shape_is_unchanged() -> None:
    assert SPELLING.translate_to_neutral(None, {"paypal": "paypal"}) == {"paypal": "paypal"}
    assert SPELLING.translate_from_neutral(None, {"wallet": "wallet"}) == {"wallet": "wallet"}


@pytest.mark.parametrize("value", [None, [], "wallet", 5])
def test_non_object_in_place_of_object_is_unchanged(value: Any) -> None:
    assert SPELLING.translate_to_neutral(Shape, value) == value
    assert SPELLING.translate_from_neutral(Shape, value) == value


def test_input_is_not_modified() -> None:
    given_ = {"wallet": {"method": "wallet"}, "inners": [{"method": "wallet"}]}
    SPELLING.translate_from_neutral(Shape, given_)
    assert given_ == {"wallet": {"method": "wallet"}, "inners": [{"method": "wallet"}]}


# Names of fields


@pytest.mark.parametrize(
    ("shape", "neutral", "spelled"),
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
def test_full_field_name_is_translated(shape: Any, neutral: str, spelled: str) -> None:
    assert LEGACY.translate_field_path(shape, neutral) == spelled
    assert NEUTRAL.translate_field_path(shape, neutral) == neutral


# The shapes of both interfaces

ANSWERED_PAYOUT = {
    "method": "wallet",
    "primary": {"method": "wallet", "currency": {"code": "USD", "name": "wallet"}},
    "accounts": {
        "bank": {"name": "wallet", "institution": "Wallet", "bankCity": "wallet"},
        "wallet": {"address": "wallet"},
    },
}
RECIPIENT = {
    "id": "R-1",
    "name": "wallet",
    "referenceId": "avatarUrl",
    "avatarUrl": "wallet",
    "address": {"city": "wallet"},
    "payoutMethod": "wallet",
    "payout": ANSWERED_PAYOUT,
}


def spell_recipient(recipient: dict[str, Any]) -> dict[str, Any]:
    payout = {
        **ANSWERED_PAYOUT,
        "method": "paypal",
        "primary": {**ANSWERED_PAYOUT["primary"], "method": "paypal"},
        "accounts": {"bank": ANSWERED_PAYOUT["accounts"]["bank"], "paypal": {"address": "wallet"}},
    }
    names = {"avatarUrl": "gravatarUrl"}
    return {
        **{names.get(name, name): value for name, value in recipient.items()},
        "payoutMethod": "paypal",
        "payout": payout,
    }


@pytest.mark.parametrize(
    ("shape", "wrap"),
    [
        (legacy.Recipient, lambda one: one),
        (legacy.RecipientAnswer, lambda one: {"recipient": one}),
        (legacy.RecipientsAnswer, lambda one: {"recipients": [one, one], "meta": {"page": 1}}),
        (legacy.PaymentsAnswer, lambda one: {"payments": [{"memo": "wallet", "recipient": one}]}),
    ],
    ids=["recipient", "answer", "list", "payments"],
)
def test_recipient_uses_client_words_and_keeps_free_text(shape: Any, wrap: Any) -> None:
    assert LEGACY.translate_from_neutral(shape, wrap(RECIPIENT)) == wrap(spell_recipient(RECIPIENT))


def test_payout_uses_client_words() -> None:
    assert (
        LEGACY.translate_from_neutral(legacy.Payout, ANSWERED_PAYOUT)
        == spell_recipient(RECIPIENT)["payout"]
    )


def test_returned_payout_is_read_in_client_words() -> None:
    sent = {"payout": spell_recipient(RECIPIENT)["payout"]}
    read = LEGACY.translate_to_neutral(legacy.RecipientBody, sent)["payout"]
    assert read["primary"]["method"] == "wallet"
    assert read["accounts"]["wallet"] == {"address": "wallet"}
    assert read["accounts"]["bank"] == ANSWERED_PAYOUT["accounts"]["bank"]


def test_account_uses_service_words_both_ways() -> None:
    account = {"type": "wallet", "emailAddress": "wallet", "accountHolderName": "wallet"}
    spelled = {**account, "type": "payco"}
    assert CURRENT.translate_from_neutral(current.Account, account) == spelled
    recipient = {"accounts": [spelled], "payoutMethod": "payco", "pictureUrl": "payco"}
    assert CURRENT.translate_to_neutral(current.RecipientAnswer, {"recipient": recipient}) == {
        "recipient": {"accounts": [account], "payoutMethod": "wallet", "avatarUrl": "payco"}
    }


def test_summary_methods_are_read_in_service_words() -> None:
    told = {"batchSummary": {"id": "payco", "methods": {"payco": {}, "bank-transfer": {}}}}
    assert CURRENT.translate_to_neutral(current.SummaryAnswer, told) == {
        "batchSummary": {"id": "payco", "methods": {"wallet": {}, "bank-transfer": {}}}
    }


@pytest.mark.parametrize("word", ["wallet", "bank-transfer"])
def test_list_filter_uses_words_of_each_side(word: str) -> None:
    spelled = {"wallet": ("paypal", "payco")}.get(word, (word, word))
    query = {"payoutMethod": word, "search": "wallet", "city": "wallet"}
    client, service = ({**query, "payoutMethod": one} for one in spelled)
    assert LEGACY.translate_to_neutral(legacy.RecipientsQuery, client) == query
    assert CURRENT.translate_from_neutral(current.RecipientsQuery, query) == service


def test_method_display_uses_client_words() -> None:
    for shown, told in (("Wallet", "Paypal"), ("Bank Transfer", "Bank Transfer")):
        assert LEGACY.translate_from_neutral(legacy.Payout, {"methodDisplay": shown}) == {
            "methodDisplay": told
        }


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


def test_each_label_has_its_own_words_and_capitals() -> None:
    words = build_legacy_translator(LABELS)
    for shown, told in (
        ("Wallet", "PayPal"),
        ("Bank Transfer", "Bank transfer"),
        ("Check", "Check"),
    ):
        for shape in (legacy.Payout, legacy.ListedPayment):
            assert words.translate_from_neutral(shape, {"methodDisplay": shown}) == {
                "methodDisplay": told
            }
    methods = {
        "wallet": {"accountType": "wallet", "displayName": "Wallet"},
        "bank-transfer": {"accountType": "service", "displayName": "Bank Transfer"},
    }
    assert words.translate_from_neutral(legacy.Summary, {"methods": methods}) == {
        "methods": {
            "paypal": {"accountType": "PayPaL", "displayName": "PAYPAL"},
            "bank-transfer": {"accountType": "AcMe", "displayName": "Local bank"},
        }
    }


def test_summary_label_is_translated_to_client_words() -> None:
    """Capitals do not matter; a word that is not the wallet's is unchanged."""
    given = {
        "batch": {
            "methods": {
                "payco": {"accountType": "PAYCO", "displayName": "PayCo"},
                "bank-transfer": {"accountType": "Rails", "displayName": "bank transfer"},
            }
        }
    }
    told = build_current_translator(LABELS).translate_to_neutral(current.SummaryAnswer, given)[
        "batch"
    ]
    assert build_legacy_translator(LABELS).translate_from_neutral(legacy.Summary, told)[
        "methods"
    ] == {
        "paypal": {"accountType": "PayPaL", "displayName": "PAYPAL"},
        "bank-transfer": {"accountType": "Rails", "displayName": "Local bank"},
    }


def test_summary_label_is_unchanged_if_both_sides_use_the_same_word() -> None:
    same = Vocabulary(legacy_wallet="paypal", current_wallet="paypal")
    given = {"batch": {"methods": {"paypal": {"accountType": "PayPal", "displayName": "PayPal"}}}}
    told = build_current_translator(same).translate_to_neutral(current.SummaryAnswer, given)[
        "batch"
    ]
    assert (
        build_legacy_translator(same).translate_from_neutral(legacy.Summary, told) == given["batch"]
    )


def test_default_word_is_invalid_if_client_uses_another() -> None:
    for shape, name in ((legacy.RecipientsQuery, "payoutMethod"), (legacy.PrimaryBody, "method")):
        assert LEGACY.translate_to_neutral(shape, {name: "wallet"})[name] not in (
            "wallet",
            "paypal",
        )
        assert NEUTRAL.translate_to_neutral(shape, {name: "wallet"}) == {name: "wallet"}
        assert LEGACY.translate_to_neutral(shape, {name: "bank"}) == {name: "bank"}


# Random words and values

word_strategies = st.sampled_from(
    ["payout", "accounts", "paypal", "bank", "method", "primary", "name", "gravatarUrl", "address"]
)
value_strategies = st.recursive(
    st.one_of(st.none(), st.sampled_from(["paypal", "bank", "x"]), st.integers()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(word_strategies, inner)),
)


@given(value_strategies)
def test_translation_round_trips(value: Any) -> None:
    for shape in (legacy.Recipient, legacy.RecipientAnswer, legacy.Payout):
        assert (
            LEGACY.translate_from_neutral(shape, LEGACY.translate_to_neutral(shape, value)) == value
        )


@given(value_strategies)
def test_default_vocabulary_translates_nothing(value: Any) -> None:
    for shape in (legacy.Recipient, legacy.RecipientBody, current.Recipient):
        assert NEUTRAL.translate_to_neutral(shape, value) is value
        assert NEUTRAL.translate_from_neutral(shape, value) is value


def test_each_side_has_its_own_vocabulary() -> None:
    only_legacy = Vocabulary(legacy_wallet="paypal")
    assert build_current_translator(only_legacy).translate_from_neutral(
        current.Account, {"type": "wallet"}
    ) == {"type": "wallet"}
    only_current = Vocabulary(current_wallet="payco")
    assert build_legacy_translator(only_current).translate_from_neutral(
        legacy.Payout, {"method": "wallet"}
    ) == {"method": "wallet"}
