"""JSON of recipients (section 2, Recipient)."""

from gateway.simulator.legacy import government_ids, payout_views
from gateway.simulator.legacy.names import Names
from gateway.simulator.rules import ADDRESS
from gateway.simulator.state import Recipient, iso
from gateway.simulator.wire import JsonObject

# Section 3. A deleted recipient appears only in earlier payments, where it is inactive.
STATUSES = {
    "active": "active",
    "incomplete": "incomplete",
    "suspended": "suspended",
    "archived": "inactive",
}
TRANSLATED = {"id", "status", "complianceStatus", "compliance", "payoutMethod"}
STANDS_FOR = {"inactive": "active", "disabled": "suspended"}


def status(shown: Recipient) -> str:
    real = str(shown.extra.get("status", shown.status))
    word = shown.legacy_status
    if word is not None and STANDS_FOR[word] == real:
        return word
    return STATUSES.get(real, "incomplete")


def compliance_status(shown: Recipient) -> str:
    return compliance_word(str(shown.extra.get("complianceStatus", shown.compliance_status)))


def compliance_word(word: str) -> str:
    return word if word in ("verified", "blocked") else "pending"


def compliance(shown: Recipient) -> JsonObject:
    checked_at = shown.compliance_checked_at
    return {
        "status": compliance_status(shown),
        "checkedAt": iso(checked_at) if checked_at else None,
    }


def recipient(names: Names, shown: Recipient) -> JsonObject:
    fields = shown.fields
    view = {
        "id": names.shown(shown.id),
        "referenceId": fields.get("referenceId"),
        "email": fields["email"],
        "name": fields["name"],
        "firstName": fields.get("firstName"),
        "lastName": fields.get("lastName"),
        "type": fields["type"],
        "status": status(shown),
        "complianceStatus": compliance_status(shown),
        "compliance": compliance(shown),
        names.world.words.legacy.avatar_url: f"https://example.com/avatars/{shown.id}.png",
        "language": fields.get("language", "en"),
        "dob": fields.get("dob"),
        "passport": fields.get("passport"),
        "ssn": government_ids.ssn(fields),
        "address": {name: shown.address.get(name) for name in ADDRESS},
        "payout": payout_views.of_recipient(names.world, shown),
        # Not in the document, but clients read it; the words are those of the list filter.
        "payoutMethod": payout_method(names, shown),
        "primaryCurrency": fields.get("primaryCurrency"),
        "createdAt": iso(shown.created_at),
        "updatedAt": iso(shown.updated_at),
    }
    return laid_over(view, shown.extra)


def laid_over(view: JsonObject, extra: JsonObject) -> JsonObject:
    """Apply a test's overrides to the fields that legacy clients see, except translated ones."""
    # Translated fields are excluded, because overrides have the service's words.
    known = (view.keys() & extra.keys()) - TRANSLATED
    return view | {name: extra[name] for name in view if name in known}


def payout_method(names: Names, shown: Recipient) -> str | None:
    primary = shown.primary
    return payout_views.filter_word(names.world, primary.type if primary else None)


def reduced(names: Names, shown: Recipient) -> JsonObject:
    """Build the recipient of a batch's list, with both names of the country that clients read."""
    country = shown.address.get("country")
    view = {
        "id": names.shown(shown.id),
        "referenceId": shown.fields.get("referenceId"),
        "email": shown.fields["email"],
        "name": shown.fields["name"],
        "status": status(shown),
        "country": country,
        "countryCode": country,
    }
    return laid_over(view, shown.extra)
