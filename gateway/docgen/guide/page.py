"""Renders the migration guide as a Markdown page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from gateway.config.settings import Settings
from gateway.docgen.explain import ExplainedCall
from gateway.docgen.guide.model import (
    GuideData,
    RemainingOperation,
    format_guide_date,
    format_guide_operation_title,
)
from gateway.signed_api import refusals
from mappings import errors
from mappings.provenance import list_documented_calls_without_drafts

CURRENT_STATUSES = {
    **refusals.STATUS_BY_CODE,
    "empty_field": 400,
    "expired_quote": 400,
    "partner_integration_error": 500,
}
"""HTTP status by error code (current interface, section 7)."""


@dataclass(frozen=True, slots=True)
class TestVector:
    """A test vector: a request signed by openssl with a made-up key. See tests/signatures."""

    access_key: str = "EXAMPLE-ACCESS-KEY"
    secret_key: str = "example-secret-key"  # noqa: S105 - made up, and the guide says so
    timestamp: int = 1700000000
    method: str = "POST"
    target: str = "/v1/batches"
    body: str = '{"currency":"USD","description":"Gehälter","payments":[]}'
    signature: str = "f5f27e87e9e9c7a1a410fc9d1b353c5c4129dce8d8e21f370fbbcedbcc137a57"


TEST_VECTOR = TestVector()
LANGUAGES = {"python": "Python", "js": "JavaScript (Node.js)", "php": "PHP"}
"""Language names by template suffix, which is also the Markdown fence tag."""

OPERATION_NOTES = {
    "list_recipients": "`search` now matches only the beginning of name, email and referenceId; "
    "`startDate` and `endDate` now filter by the last change instead of creation; `payoutMethod` "
    "for bank transfers requires `currency`; `orderBy` accepts name, email, referenceId, "
    "payoutMethod, createdAt and updatedAt; `city` no longer exists.",
    "update_recipient": "The statuses `inactive` and `disabled` no longer exist; `active` and `suspended` "
    "can be set.",
}
"""Parameters and statuses that have changed, by operation (current interface, section 4.1)."""


class ErrorCode(NamedTuple):
    """An error code with its status in both interfaces; None if an interface lacks it."""

    code: str
    before: int | None
    after: int | None


def render_guide(guide_data: GuideData, settings: Settings) -> str:
    # StrictUndefined: a misspelt name must fail, not leave a gap in a merchant's guide.
    environment = Environment(
        autoescape=False,  # noqa: S701 - Markdown; names go through the filter `md`
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
        "title": format_guide_operation_title,
    }
    vocabulary = settings.vocabulary.current
    shared_context = {"words": vocabulary, "vector": TEST_VECTOR, "form": guide_data.form}
    snippets = {
        name: environment.from_string(_load_template(f"sign.{name}.j2")).render(shared_context)
        for name in LANGUAGES
    }
    return environment.from_string(_load_template("page.md.j2")).render(
        shared_context,
        found=guide_data,
        languages=LANGUAGES,
        notes=OPERATION_NOTES,
        snippets=snippets,
        failures=list_error_codes_with_statuses(),
        changed=list_changed_fields,
        others=lambda remaining: list(iter_calls_missing_in_example(remaining)),
        answered=list_changed_response_fields,
        remembered=list_stored_fields,
    )


def list_error_codes_with_statuses() -> list[ErrorCode]:
    """Returns the error codes of both interfaces; those that change come first."""
    codes = dict.fromkeys((*errors.STATUS_BY_CODE, *CURRENT_STATUSES))
    error_codes = [
        ErrorCode(code, errors.STATUS_BY_CODE.get(code), CURRENT_STATUSES.get(code))
        for code in codes
    ]
    # False sorts before True, and otherwise the order stays.
    return sorted(error_codes, key=lambda error_code: error_code.before == error_code.after)


def list_changed_fields(call: ExplainedCall) -> list[Any]:
    """Returns the fields that are renamed, translated or set by the gateway."""
    return [origin for origin in call.fields if origin.rule != "same"]


def iter_calls_missing_in_example(remaining: RemainingOperation) -> Iterator[tuple[str, str]]:
    """Calls that the operation may need but the example does not, with their conditions."""
    calls_made = [
        f"{call.method} {call.target.partition('?')[0]}" for call in remaining.after.calls
    ]
    for call_entry in list_documented_calls_without_drafts(remaining.operation):
        call = call_entry["call"]
        # Ids in the example are concrete, and placeholders in the table.
        pattern = re.sub(r":[\w-]+", "[^/]+", call.partition("?")[0].replace(" /", " /v1/"))
        if call != "No call" and not any(
            re.fullmatch(pattern, call_made) for call_made in calls_made
        ):
            yield call, call_entry["note"]


def list_changed_response_fields(remaining: RemainingOperation) -> list[tuple[str, str, str]]:
    """Returns the answer fields that are renamed or that the service does not return."""
    return [row for row in remaining.after.answered if row[0].rpartition(".")[2] != row[1]]


def list_stored_fields(remaining: RemainingOperation) -> list[str]:
    """Returns what the gateway stores for clients, without batch records, which are internal."""
    return [text for text in remaining.after.remembered if not text.startswith("batch ")]


def escape_markdown(text: str) -> str:
    """Escapes untrusted text, such as a merchant's name, for Markdown."""
    # A line break would end the heading or table row.
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", " ".join(text.split()))


def format_table_cell(value: Any) -> str:
    """Formats a value as inline code in a table cell."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"`{text}`".replace("|", "\\|")


def format_pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def quote_php_string(text: str) -> str:
    """Formats a string literal for PHP."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _load_template(name: str) -> str:
    return files("gateway.docgen.guide").joinpath(name).read_text(encoding="utf-8")
