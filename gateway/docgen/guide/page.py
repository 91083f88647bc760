"""The guide as one Markdown page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from gateway.config.settings import Settings
from gateway.docgen.explain import Made
from gateway.docgen.guide.model import Gathered, Left, format_guide_date, format_guide_title
from gateway.signed_api import refusals
from mappings import errors
from mappings.provenance import list_client_calls

CURRENT_STATUS = {
    **refusals.STATUS,
    "empty_field": 400,
    "expired_quote": 400,
    "partner_integration_error": 500,
}
"""Current interface, section 7: code to HTTP status."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A request and its signature, made by openssl: see tests/signatures. Nobody's key signs it."""

    access_key: str = "EXAMPLE-ACCESS-KEY"
    secret_key: str = "example-secret-key"  # noqa: S105 - made up, and said to be
    timestamp: int = 1700000000
    method: str = "POST"
    target: str = "/v1/batches"
    body: str = '{"currency":"USD","description":"Gehälter","payments":[]}'
    signature: str = "f5f27e87e9e9c7a1a410fc9d1b353c5c4129dce8d8e21f370fbbcedbcc137a57"


VECTOR = Vector()
LANGUAGES = {"python": "Python", "js": "JavaScript (Node.js)", "php": "PHP"}
"""By the ending of their templates; as fences of Markdown name them."""

NOTES = {
    "list_recipients": "`search` finds the beginnings of name, email and referenceId, no longer any part; "
    "`startDate` and `endDate` go by the last change, no longer by creation; `payoutMethod` for bank "
    "transfers needs `currency`; `orderBy` takes name, email, referenceId, payoutMethod, createdAt and "
    "updatedAt; and there is no `city`.",
    "update_recipient": "`inactive` and `disabled` are no statuses any more: `active` and `suspended` can be "
    "set.",
}
"""What the same names mean now (current interface, section 4.1)."""


class Failure(NamedTuple):
    """One code of an error, on both sides; None where a side does not have it."""

    code: str
    before: int | None
    after: int | None


def render_guide(found: Gathered, settings: Settings) -> str:
    environment = Environment(
        autoescape=False,  # noqa: S701 - Markdown; what is not ours goes through a filter
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "md": escape_markdown,
        "cell": format_table_cell,
        "json": format_pretty_json,
        "php": quote_php_string,
        "day": format_guide_date,
        "title": format_guide_title,
    }
    words = settings.vocabulary.current
    said = {"words": words, "vector": VECTOR, "form": found.form}
    snippets = {
        name: environment.from_string(_text(f"sign.{name}.j2")).render(said) for name in LANGUAGES
    }
    return environment.from_string(_text("page.md.j2")).render(
        said,
        found=found,
        languages=LANGUAGES,
        notes=NOTES,
        snippets=snippets,
        failures=list_error_codes(),
        changed=list_changed_fields,
        others=lambda left: list(iter_other_calls(left)),
        answered=list_changed_response_fields,
        remembered=list_remembered_fields,
    )


def list_error_codes() -> list[Failure]:
    """Every code of either interface, those that change first."""
    codes = dict.fromkeys((*errors.STATUS, *CURRENT_STATUS))
    found = [Failure(code, errors.STATUS.get(code), CURRENT_STATUS.get(code)) for code in codes]
    return sorted(found, key=lambda one: one.before == one.after)


def list_changed_fields(call: Made) -> list[Any]:
    """The fields that are not simply sent under the same name."""
    return [one for one in call.fields if one.rule != "same"]


def iter_other_calls(left: Left) -> Iterator[tuple[str, str]]:
    """Calls that other requests of the operation need, and the example does not; and when."""
    made = [f"{call.method} {call.target.partition('?')[0]}" for call in left.after.calls]
    for one in list_client_calls(left.operation):
        call = one["call"]
        pattern = re.sub(r":[\w-]+", "[^/]+", call.partition("?")[0].replace(" /", " /v1/"))
        if call != "No call" and not any(re.fullmatch(pattern, its) for its in made):
            yield call, one["note"]


def list_changed_response_fields(left: Left) -> list[tuple[str, str, str]]:
    """Fields of the answer that are called otherwise, or that the service does not give."""
    return [one for one in left.after.answered if one[0].rpartition(".")[2] != one[1]]


def list_remembered_fields(left: Left) -> list[str]:
    """What a client has no place for but here; how batches are kept is the gateway's own affair."""
    return [one for one in left.after.remembered if not one.startswith("batch ")]


def escape_markdown(text: str) -> str:
    """Text of somebody else's in a page of Markdown: none of it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", " ".join(text.split()))


def format_table_cell(value: Any) -> str:
    """A value in a table's cell, as code."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"`{text}`".replace("|", "\\|")


def format_pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def quote_php_string(text: str) -> str:
    """A string as PHP writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _text(name: str) -> str:
    return files("gateway.docgen.guide").joinpath(name).read_text(encoding="utf-8")
