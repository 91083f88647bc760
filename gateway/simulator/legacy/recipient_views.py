"""JSON of recipients (section 2, Recipient)."""

from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import government_ids, payout_views
from gateway.simulator.legacy.id_mapper import IdMapper
from gateway.simulator.recipient_rules import ADDRESS_CHECKS
from gateway.simulator.state import Recipient, format_timestamp

# Section 3. A deleted recipient appears only in earlier payments, where it is inactive.
LEGACY_STATUSES = {
    "active": "active",
    "incomplete": "incomplete",
    "suspended": "suspended",
    "archived": "inactive",
}
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
    checked_at = recipient.compliance_checked_at
    return {
        "status": translate_compliance_status(recipient),
        "checkedAt": format_timestamp(checked_at) if checked_at else None,
    }


def build_recipient(id_mapper: IdMapper, recipient: Recipient) -> JsonObject:
    fields = recipient.fields
    view = {
        "id": id_mapper.build_client_id(recipient.id),
        "referenceId": fields.get("referenceId"),
        "email": fields["email"],
        "name": fields["name"],
        "firstName": fields.get("firstName"),
        "lastName": fields.get("lastName"),
        "type": fields["type"],
        "status": translate_status(recipient),
        "complianceStatus": translate_compliance_status(recipient),
        "compliance": build_compliance(recipient),
        id_mapper.tenant.vocabulary.legacy.avatar_url: f"https://example.com/avatars/{recipient.id}.png",
        "language": fields.get("language", "en"),
        "dob": fields.get("dob"),
        "passport": fields.get("passport"),
        "ssn": government_ids.mask_recipient_ssn(fields),
        "address": {name: recipient.address.get(name) for name in ADDRESS_CHECKS},
        "payout": payout_views.build_payout_or_null_method(id_mapper.tenant, recipient),
        # Not in the document, but clients read it; the words are those of the list filter.
        "payoutMethod": find_payout_method(id_mapper, recipient),
        "primaryCurrency": fields.get("primaryCurrency"),
        "createdAt": format_timestamp(recipient.created_at),
        "updatedAt": format_timestamp(recipient.updated_at),
    }
    return apply_overrides(view, recipient.overrides)


def apply_overrides(view: JsonObject, overrides: JsonObject) -> JsonObject:
    """Applies a test's overrides to the fields that legacy clients see, except translated ones."""
    # Translated fields are excluded, because overrides have the service's words.
    overridden_names = (view.keys() & overrides.keys()) - TRANSLATED_FIELDS
    return view | {name: overrides[name] for name in view if name in overridden_names}


def find_payout_method(id_mapper: IdMapper, recipient: Recipient) -> str | None:
    primary_account = recipient.primary_account
    return payout_views.translate_account_type(
        id_mapper.tenant, primary_account.type if primary_account else None
    )


def build_reduced_recipient(id_mapper: IdMapper, recipient: Recipient) -> JsonObject:
    """Builds the recipient of a batch's list, with both names of the country that clients read."""
    country = recipient.address.get("country")
    view = {
        "id": id_mapper.build_client_id(recipient.id),
        "referenceId": recipient.fields.get("referenceId"),
        "email": recipient.fields["email"],
        "name": recipient.fields["name"],
        "status": translate_status(recipient),
        "country": country,
        "countryCode": country,
    }
    return apply_overrides(view, recipient.overrides)
