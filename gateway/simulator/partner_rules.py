"""Validation of sub-merchants (current interface, section 4.4)."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator import values
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipient_rules import is_country
from gateway.simulator.values import Check, is_blank

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
COLOR_FIELDS = (
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

WEBSITE_PATTERN = re.compile(r"(https?://)?[^\s/.]+(\.[^\s/.]+)+(/\S*)?")
NUMBER_PATTERN = re.compile(r"[0-9]{1,15}(\.[0-9]{1,2})?")
DIGITS_PATTERN = re.compile(r"[0-9]{1,34}")
COLOR_PATTERN = re.compile(r"#?([0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})")

validate_website = values.create_pattern_check(WEBSITE_PATTERN, "Must be a website address")
validate_number = values.create_pattern_check(NUMBER_PATTERN, "Must be numeric text")
validate_digits = values.create_pattern_check(DIGITS_PATTERN, "Must be digits")


def validate_country(value: Any) -> str | None:
    return None if is_country(value) else "Must be ISO 3166-1 alpha-2"


def validate_flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "Must be a boolean"


MERCHANT_CHECKS: dict[str, Check] = {
    "name": values.validate_text,
    "currency": values.validate_currency,
    "website": validate_website,
    "country": validate_country,
}

# In the order of section 4.4. If one is missing, onboarding is incomplete and nothing is refused.
# businessZip is optional because some countries have no postal codes.
ONBOARDING_CHECKS: dict[str, Check] = {
    "businessLegalName": values.validate_text,
    "businessPhone": values.validate_phone,
    "businessWebsite": validate_website,
    "businessCategory": values.create_choice_check(*CATEGORIES),
    "businessCountry": validate_country,
    "businessCity": values.validate_text,
    "businessAddress": values.validate_text,
    "businessZip": values.validate_text,
    "businessRegion": values.validate_text,
    "businessTotalMonthly": validate_number,
    "businessPpm": validate_number,
    "businessIntlPercentage": validate_number,
}
OPTIONAL_ONBOARDING = frozenset({"businessZip"})

ONBOARDING_CHANGE_CHECKS: dict[str, Check] = {
    "businessTotalMonthly": validate_number,
    "businessPpm": values.create_choice_check(*PAYOUTS_PER_MONTH),
}

# "These last five digits only" in the document refers to branchId through accountNum.
BANK_ACCOUNT_CHECKS: dict[str, Check] = {
    "accountName": values.validate_text,
    "currency": values.validate_currency,
    "bankCountry": validate_country,
    "branchId": validate_digits,
    "bankId": validate_digits,
    "institution": validate_digits,
    "transit": validate_digits,
    "accountNum": validate_digits,
    "enabled": validate_flag,
}

validate_color = values.create_pattern_check(COLOR_PATTERN, "Must be a hex color of 3 or 6 digits")


def parse_fields(
    problems: Problems, body: Mapping[str, Any], checks: Mapping[str, Check], *, required: bool
) -> JsonObject:
    """Returns the fields that the body has, after checking them; ignores unknown fields."""
    fields = {name: body[name] for name in checks if not is_blank(body.get(name))}
    for name, check in checks.items():
        if name not in fields:
            if required:
                problems.add_empty_field(name)
        elif error := check(fields[name]):
            problems.add_invalid_field(name, error)
    return fields


def parse_object(problems: Problems, body: Mapping[str, Any], name: str) -> JsonObject:
    """Returns an object in a body; a missing one counts as empty."""
    value = body.get(name)
    if isinstance(value, dict | None):
        return value or {}
    problems.add_invalid_field(name, "Must be an object")
    return {}


def is_onboarding_complete(onboarding: Mapping[str, Any]) -> bool:
    return all(name in onboarding for name in ONBOARDING_CHECKS if name not in OPTIONAL_ONBOARDING)
