"""Government ids: `ssn` of a recipient, `governmentId` of a bank account (sections 2, 4.2)."""

from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipients import check_government_id
from gateway.simulator.values import mask_value

SSN_COUNTRY = "US"


def mask_recipient_government_id(recipient: JsonObject, country: str | None) -> str | None:
    """Returns the masked id of a country, of the type that payments there need."""
    for entry in recipient.get("governmentIds", []):
        if (entry.get("country"), entry.get("type")) == (
            country,
            _select_government_id_type(country),
        ):
            return mask_value(str(entry["value"]))
    return None


def mask_recipient_ssn(recipient: JsonObject) -> str | None:
    """Returns the masked SSN, from its own field or from the government ids."""
    return mask_value(recipient.get("ssn")) or mask_recipient_government_id(recipient, SSN_COUNTRY)


def _select_government_id_type(country: str | None) -> str:
    return "SSN" if country == SSN_COUNTRY else "other"


def list_government_ids_after_adding(
    problems: Problems, name: str, value: object, country: str, recipient: JsonObject
) -> list[JsonObject] | None:
    """Returns the ids of a new recipient including this one, or None without a value."""
    if value is None:
        return None
    new_id = _build_checked_id(problems, name, value, country, recipient)
    other_ids = [
        government_id
        for government_id in recipient.get("governmentIds", [])
        if (government_id["country"], government_id["type"])
        != (country, _select_government_id_type(country))
    ]
    return [*other_ids, new_id]


def list_government_ids_after_replacing(
    problems: Problems,
    name: str,
    value: object,
    country: str,
    recipient: JsonObject,
    *,
    other_country: str | None = None,
) -> list[JsonObject] | None:
    """Returns the recipient's new ids, or None if they do not change.

    The id replaces all others. It is refused if the recipient has an id of another country, except
    of `other_country`, for which the same request has an id.
    """
    # The service replaces all ids together, and responses show them masked: a client cannot repeat
    # the id of another country, which would be lost.
    if value is None or value == mask_recipient_government_id(recipient, country):
        return None
    if any(
        government_id["country"] not in (country, other_country)
        for government_id in recipient.get("governmentIds", [])
    ):
        problems.add_invalid_field(name, "Recipient has a government id of another country")
        return None
    return [_build_checked_id(problems, name, value, country, recipient)]


def _build_checked_id(
    problems: Problems, name: str, value: object, country: str, recipient: JsonObject
) -> JsonObject:
    government_id = {
        "country": country,
        "type": _select_government_id_type(country),
        "value": value,
    }
    # Apart, because problems of the entry are reported under the client's own field.
    nested_problems = Problems()
    check_government_id(nested_problems, government_id, str(recipient.get("type")))
    for problem in nested_problems.collected:
        if problem.field == "value":  # The account's own rules report a wrong country.
            problems.add_problem(problem.code, name, problem.message)
    return government_id
