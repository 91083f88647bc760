"""Validation of sub-merchants (current interface, section 4.4)."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator import values
from gateway.simulator.refusals import Problems
from gateway.simulator.rules import is_country
from gateway.simulator.values import Check, blank
from gateway.simulator.wire import JsonObject

CATEGORIES = (
    "online_market",
    "app_store",
    "affiliate_platform",
    "ad_network",
    "crowdfunding",
    "crowdsourcing",
    "share_economy",
    "e-commerce",
    "charity",
    "surveys",
    "rebates",
    "startup",
    "publishing",
    "entertainment",
    "travel",
    "education",
    "manufacturing",
    "business_service",
    "influencer_platform",
    "online_gambling",
    "adult_entertainment",
    "multi_level_marketing",
    "firearms",
    "money_transmitter_service",
    "credit_card_processing",
    "other",
)
PAYOUTS_PER_MONTH = (
    "less-10",
    "10-50",
    "50-100",
    "100-500",
    "500-1000",
    "1000-10000",
    "10000-100000",
    "100000-more",
)
COLORS = (
    "primary",
    "success",
    "error",
    "warning",
    "border",
    "heading",
    "text",
    "inputText",
    "inputBorder",
    "subText",
    "background",
)

WEBSITE = re.compile(r"(https?://)?[^\s/.]+(\.[^\s/.]+)+(/\S*)?")
NUMERIC = re.compile(r"[0-9]{1,15}(\.[0-9]{1,2})?")
DIGITS = re.compile(r"[0-9]{1,34}")
COLOR = re.compile(r"#?([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})")

website = values.matching(WEBSITE, "Must be a website address")
numeric = values.matching(NUMERIC, "Must be numeric text")
digits = values.matching(DIGITS, "Must be digits")


def country(value: Any) -> str | None:
    return None if is_country(value) else "Must be ISO 3166-1 alpha-2"


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "Must be a boolean"


MERCHANT: dict[str, Check] = {
    "name": values.text,
    "currency": values.currency,
    "website": website,
    "country": country,
}

# In the order of section 4.4. If one is missing, onboarding is incomplete and nothing is refused.
# businessZip is optional because some countries have no postal codes.
ONBOARDING: dict[str, Check] = {
    "businessLegalName": values.text,
    "businessPhone": values.phone,
    "businessWebsite": website,
    "businessCategory": values.one_of(*CATEGORIES),
    "businessCountry": country,
    "businessCity": values.text,
    "businessAddress": values.text,
    "businessZip": values.text,
    "businessRegion": values.text,
    "businessTotalMonthly": numeric,
    "businessPpm": numeric,
    "businessIntlPercentage": numeric,
}
OPTIONAL_ONBOARDING = frozenset({"businessZip"})

ONBOARDING_CHANGE: dict[str, Check] = {
    "businessTotalMonthly": numeric,
    "businessPpm": values.one_of(*PAYOUTS_PER_MONTH),
}

# "These last five digits only" in the document refers to branchId through accountNum.
BANK_ACCOUNT: dict[str, Check] = {
    "accountName": values.text,
    "currency": values.currency,
    "bankCountry": country,
    "branchId": digits,
    "bankId": digits,
    "institution": digits,
    "transit": digits,
    "accountNum": digits,
    "enabled": flag,
}

color = values.matching(COLOR, "Must be a hex color of 3 or 6 digits")


def read(
    problems: Problems, sent: Mapping[str, Any], checks: Mapping[str, Check], *, required: bool
) -> JsonObject:
    """Return the fields that the body has, after checking them; ignores unknown fields."""
    given = {name: sent[name] for name in checks if not blank(sent.get(name))}
    for name, check in checks.items():
        if name not in given:
            if required:
                problems.empty(name)
        elif wrong := check(given[name]):
            problems.invalid(name, wrong)
    return given


def inside(problems: Problems, body: Mapping[str, Any], name: str) -> JsonObject:
    """Return an object in a body; a missing one counts as empty."""
    value = body.get(name)
    if isinstance(value, dict | None):
        return value or {}
    problems.invalid(name, "Must be an object")
    return {}


def onboarded(onboarding: Mapping[str, Any]) -> bool:
    return all(name in onboarding for name in ONBOARDING if name not in OPTIONAL_ONBOARDING)
