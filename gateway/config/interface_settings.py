"""Sections about the two interfaces: vocabulary, options of the translation, retries, lists."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from gateway.config.section import Section
from gateway.config.value_types import (
    HeaderName,
    Label,
    NeutralWord,
    Token,
    WalletWord,
    build_unused_field_name_validator,
)
from mappings import current, legacy
from mappings.effects import LegacyOptions, Vocabulary


class LegacyWords(Section):
    wallet: WalletWord = "wallet"
    # The default is validated too, because a configured wallet word may be equal to it.
    service: NeutralWord = Field("service", validate_default=True)
    service_total: Annotated[
        NeutralWord,
        AfterValidator(
            build_unused_field_name_validator(legacy.Summary, neutral_name="ServiceTotal")
        ),
    ] = "ServiceTotal"
    avatar_url: Annotated[
        NeutralWord,
        AfterValidator(
            build_unused_field_name_validator(legacy.Recipient, neutral_name="avatarUrl")
        ),
    ] = "avatarUrl"
    wallet_method_display: Label = ""
    bank_method_display: Label = "Bank Transfer"
    wallet_display_name: Label = ""
    bank_display_name: Label = "Bank Transfer"
    wallet_account_type: Label = ""
    service_account_type: Label = ""

    @field_validator("service")
    @classmethod
    def _check_service_and_wallet_words_differ(cls, word: str, info: ValidationInfo) -> str:
        if word == info.data.get("wallet"):
            raise ValueError("is the wallet's word; the two balances would have the same name")
        return word


class CurrentWords(Section):
    scheme: Token = "svcsign"
    timestamp_header: HeaderName = "X-SVC-Timestamp"
    wallet: WalletWord = "wallet"
    avatar_url: Annotated[
        NeutralWord,
        AfterValidator(
            build_unused_field_name_validator(current.Recipient, neutral_name="avatarUrl")
        ),
    ] = "avatarUrl"
    # The signed path starts with /v1.
    balance_path: str = Field("/v1/balance", pattern=r"^/v1/")
    summary_path: str = Field("/v1/batch/{id}/summary", pattern=r"^/v1/.*\{id\}")
    batch_currency: Annotated[
        NeutralWord,
        AfterValidator(
            build_unused_field_name_validator(current.BatchCreate, neutral_name="currency")
        ),
    ] = "currency"


class Words(Section):
    legacy: LegacyWords = LegacyWords()
    current: CurrentWords = CurrentWords()

    def build_vocabulary(self) -> Vocabulary:
        # These two are used in signatures, not in bodies and paths.
        signing_names = {"scheme", "timestamp_header"}
        return Vocabulary(
            **{f"legacy_{name}": word for name, word in self.legacy},
            **{f"current_{name}": word for name, word in self.current if name not in signing_names},
        )


class Legacy(Section):
    stand_ins: Literal["all", "batches", "none"] = "all"
    verify_before_start: Literal["warn", "refuse", "off"] = "warn"
    government_ids: Literal["keep", "replace"] = "keep"
    holdup: Literal["remember", "refuse"] = "remember"
    primary_currency: Literal["both", "flat", "nested"] = "both"
    account_number_from_iban: Literal["auto", "always", "never"] = "auto"
    send_memo: bool = True
    undeclared_charset: Literal["utf-8", "latin-1"] = "utf-8"

    def build_legacy_options(self) -> LegacyOptions:
        return LegacyOptions(
            government_ids=self.government_ids,
            holdup=self.holdup,
            primary_currency=self.primary_currency,
            account_number_from_iban=self.account_number_from_iban,
            verify_before_start=self.verify_before_start,
            send_memo=self.send_memo,
        )


class Lists(Section):
    """The recipient caches of each process, for list queries that only the legacy interface has."""

    # "Index" is an older word for the cache; existing configurations use it.
    index: bool = True
    index_seconds: float = Field(3600, ge=60)
    index_recipients: int = Field(250_000, ge=1)


class Writes(Section):
    """Settings that decide which requests count as retries of a write."""

    identical_in_flight: Literal["retry", "separate"] = "retry"
    replay_seconds: float = Field(0, ge=0, le=3600)


class Signed(Section):
    unknown_keys: Literal["refuse", "forward"] = "refuse"
    environment: Literal["", "live", "sandbox"] = ""

    @model_validator(mode="after")
    def _check_forwarding_has_environment(self) -> Self:
        if self.unknown_keys == "forward" and not self.environment:
            raise ValueError('unknown_keys = "forward" needs environment, "live" or "sandbox"')
        return self
