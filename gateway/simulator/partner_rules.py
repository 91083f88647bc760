"""Validation of sub-merchants (current interface, section 4.4)."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator import values
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipient_rules import is_country_code
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

find_website_problem = values.create_pattern_check(WEBSITE_PATTERN, "Must be a website address")
find_number_problem = values.create_pattern_check(NUMBER_PATTERN, "Must be numeric text")
find_digits_problem = values.create_pattern_check(DIGITS_PATTERN, "Must be digits")


def find_country_problem(value: Any) -> str | None:
    return None if is_country_code(value) else "Must be ISO 3166-1 alpha-2"


def find_boolean_problem(value: Any) -> str | None:
    return None if isinstance(value, bool) else "Must be a boolean"


MERCHANT_CHECKS: dict[str, Check] = {
    "name": values.find_text_problem,
    "currency": values.find_currency_problem,
    "website": find_website_problem,
    "country": find_country_problem,
}

# In the order of section 4.4. If one is missing, onboarding is incomplete and nothing is refused.
# businessZip is optional because some countries have no postal codes.
ONBOARDING_CHECKS: dict[str, Check] = {
    "businessLegalName": values.find_text_problem,
    "businessPhone": values.find_phone_problem,
    "businessWebsite": find_website_problem,
    "businessCategory": values.create_choice_check(*CATEGORIES),
    "businessCountry": find_country_problem,
    "businessCity": values.find_text_problem,
    "businessAddress": values.find_text_problem,
    "businessZip": values.find_text_problem,
    "businessRegion": values.find_text_problem,
    "businessTotalMonthly": find_number_problem,
    "businessPpm": find_number_problem,
    "businessIntlPercentage": find_number_problem,
}
OPTIONAL_ONBOARDING = frozenset({"businessZip"})

ONBOARDING_CHANGE_CHECKS: dict[str, Check] = {
    "businessTotalMonthly": find_number_problem,
    "businessPpm": values.create_choice_check(*PAYOUTS_PER_MONTH),
}

# "These last five digits only" in the document refers to branchId through accountNum.
BANK_ACCOUNT_CHECKS: dict[str, Check] = {
    "accountName": values.find_text_problem,
    "currency": values.find_currency_problem,
    "bankCountry": find_country_problem,
    "branchId": find_digits_problem,
    "bankId": find_digits_problem,
    "institution": find_digits_problem,
    "transit": find_digits_problem,
    "accountNum": find_digits_problem,
    "enabled": find_boolean_problem,
}

find_color_problem = values.create_pattern_check(
    COLOR_PATTERN, "Must be a hex color of 3 or 6 digits"
)


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
