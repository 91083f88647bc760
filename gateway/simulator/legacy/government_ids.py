"""One government id: `ssn` of a recipient, `governmentId` of a bank account (sections 2, 4.2)."""

from gateway.simulator.refusals import Problems
from gateway.simulator.rules import check_government_id
from gateway.simulator.values import mask
from gateway.simulator.wire import JsonObject

SSN_COUNTRY = "US"


def shown(recipient: JsonObject, country: str | None) -> str | None:
    """Masked; of that country, and of the kind that a payment there is made with."""
    for entry in recipient.get("governmentIds", []):
        if (entry.get("country"), entry.get("type")) == (country, _kind(country)):
            return mask(str(entry["value"]))
    return None


def ssn(recipient: JsonObject) -> str | None:
    """Masked; the service has it as a field of its own, or among the government ids."""
    return mask(recipient.get("ssn")) or shown(recipient, SSN_COUNTRY)


def _kind(country: str | None) -> str:
    return "SSN" if country == SSN_COUNTRY else "other"


def added(
    problems: Problems, name: str, value: object, country: str, recipient: JsonObject
) -> list[JsonObject] | None:
    """All ids of a new recipient, of which this is one."""
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
    """The recipient's ids from now on; None where they stay as they are.

    An id takes the place of all others, and is refused where one of another country is among
    them: the service takes them together, and nobody can say again what is only shown masked.
    `also` is the country of another id that the same request gives.
    """
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
        if each.field == "value":  # of a wrong country the account's own rules speak
            problems.add(each.code, name, each.message)
    return entry
