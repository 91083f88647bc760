"""JSON of recipients (section 2, Recipient)."""

from gateway.simulator import batch_views, views
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import government_ids, payout_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.state import Recipient, format_optional_timestamp

# Section 3. A deleted recipient appears only in earlier payments, where it is inactive.
LEGACY_STATUSES = {
    "active": "active",
    "incomplete": "incomplete",
    "suspended": "suspended",
    "archived": "inactive",
}
SHARED_FIELDS = (
    "id", "referenceId", "email", "name", "firstName", "lastName", "type", "status",
    "complianceStatus", "compliance", "language", "dob", "passport", "ssn", "address",
    "primaryCurrency", "createdAt", "updatedAt",
)  # fmt: skip
"""In the order of section 2; those with other values here are replaced."""

TRANSLATED_FIELDS = {"id", "status", "complianceStatus", "compliance", "payoutMethod"}
SERVICE_STATUS_BY_LEGACY_STATUS = {"inactive": "active", "disabled": "suspended"}


def translate_status(recipient: Recipient) -> str:
    service_status = str(recipient.overrides.get("status", recipient.status))
    word = recipient.legacy_status
    # The legacy word counts as long as nobody has changed the status through the current interface.
    if word is not None and SERVICE_STATUS_BY_LEGACY_STATUS[word] == service_status:
        return word
    return LEGACY_STATUSES.get(service_status, "incomplete")


def translate_compliance_status(recipient: Recipient) -> str:
    return translate_compliance_word(
        str(recipient.overrides.get("complianceStatus", recipient.compliance_status))
    )


def translate_compliance_word(word: str) -> str:
    # This document has no word for `review`.
    return word if word in ("verified", "blocked") else "pending"


def build_compliance(recipient: Recipient) -> JsonObject:
    return {
        "status": translate_compliance_status(recipient),
        "checkedAt": format_optional_timestamp(recipient.compliance_checked_at),
    }


def build_recipient(request: LegacyRequest, recipient: Recipient) -> JsonObject:
    words, service_view = (
        request.tenant.vocabulary,
        views.build_recipient(request.tenant, recipient),
    )
    return {name: service_view[name] for name in SHARED_FIELDS} | {
        "id": request.build_client_id(recipient.id),
        "status": translate_status(recipient),
        "complianceStatus": translate_compliance_status(recipient),
        "compliance": build_compliance(recipient),
        words.legacy.avatar_url: service_view[words.avatar_url],
        "ssn": recipient.overrides.get("ssn", government_ids.mask_recipient_ssn(recipient.fields)),
        "payout": payout_views.build_payout(request.tenant, recipient) or {"method": None},
        # Not in the document, but clients read it; the words are those of the list filter.
        "payoutMethod": find_payout_method(request, recipient),
    }


def apply_overrides(view: JsonObject, overrides: JsonObject) -> JsonObject:
    """Applies a test's overrides to the fields that legacy clients see, except translated ones."""
    # Translated fields are excluded, because overrides have the service's words.
    overridden_names = (view.keys() & overrides.keys()) - TRANSLATED_FIELDS
    return view | {name: overrides[name] for name in view if name in overridden_names}


def find_payout_method(request: LegacyRequest, recipient: Recipient) -> str | None:
    primary_account = recipient.primary_account
    return payout_views.translate_account_type(
        request.tenant, primary_account.type if primary_account else None
    )


def build_reduced_recipient(request: LegacyRequest, recipient: Recipient) -> JsonObject:
    """Builds the recipient of a batch's list, with both names of the country that clients read."""
    view = batch_views.build_reduced_recipient(recipient) | {
        "id": request.build_client_id(recipient.id),
        "status": translate_status(recipient),
    }
    return view | {"countryCode": view["country"]}
