"""Government ids: `ssn` of a recipient, `governmentId` of a bank account (sections 2, 4.2)."""

from gateway.simulator.refusals import Problems
from gateway.simulator.rules import check_government_id
from gateway.simulator.values import mask
from gateway.simulator.wire import JsonObject

SSN_COUNTRY = "US"


def shown(recipient: JsonObject, country: str | None) -> str | None:
    """Return the masked id of a country, of the type that payments there need."""
    for entry in recipient.get("governmentIds", []):
        if (entry.get("country"), entry.get("type")) == (country, _kind(country)):
            return mask(str(entry["value"]))
    return None


def ssn(recipient: JsonObject) -> str | None:
    """Return the masked SSN, from its own field or from the government ids."""
    return mask(recipient.get("ssn")) or shown(recipient, SSN_COUNTRY)


def _kind(country: str | None) -> str:
    return "SSN" if country == SSN_COUNTRY else "other"


def added(
    problems: Problems, name: str, value: object, country: str, recipient: JsonObject
) -> list[JsonObject] | None:
    """Return the ids of a new recipient including this one, or None without a value."""
    if value is None:
        return None
    entry = _checked(problems, name, value, country, recipient)
    others = [
        each
        for each in recipient.get("governmentIds", [])
        if (each["country"], each["type"]) != (country, _kind(country))
    ]
    return [*others, entry]


def replaced(
    problems: Problems,
    name: str,
    value: object,
    country: str,
    recipient: JsonObject,
    *,
    also: str | None = None,
) -> list[JsonObject] | None:
    """Return the recipient's new ids, or None if they do not change.

    The id replaces all others. It is refused if the recipient has an id of another country, except
    of `other_country`, for which the same request has an id.
    """
    # The service replaces all ids together, and responses show them masked: a client cannot repeat
    # the id of another country, which would be lost.
    if value is None or value == shown(recipient, country):
        return None
    if any(each["country"] not in (country, also) for each in recipient.get("governmentIds", [])):
        problems.invalid(name, "Recipient has a government id of another country")
        return None
    return [_checked(problems, name, value, country, recipient)]


def _checked(
    problems: Problems, name: str, value: object, country: str, recipient: JsonObject
) -> JsonObject:
    entry = {"country": country, "type": _kind(country), "value": value}
    found = Problems()
    check_government_id(found, entry, str(recipient.get("type")))
    for each in found.found:
        if each.field == "value":  # The account's own rules report a wrong country.
            problems.add(each.code, name, each.message)
    return entry
