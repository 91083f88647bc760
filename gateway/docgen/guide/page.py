"""Renders the migration guide of a key as Markdown, from the operations that it used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from gateway.auth.key_rows import ListedKey
from gateway.auth.signing import SignedTargetForm
from gateway.config.settings import Settings
from gateway.docgen.examples import RequestExample, build_request_example
from gateway.docgen.explain import ExplainedCall, Explanation, explain_request
from gateway.signed_api import refusals
from gateway.storage import ObjectStateStore, Store
from gateway.storage.id_rows import count_objects_with_legacy_id
from gateway.storage.request_counts import UsageSummary, load_usage_summaries
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.signed_target import CAPABILITY_NAME
from mappings import OPERATIONS, UNLISTED, errors
from mappings.effects import Operation
from mappings.provenance import list_documented_calls_without_drafts

SIGNED_OPERATION = "signed"
"""The operation name under which signed requests are counted."""


@dataclass(frozen=True, slots=True)
class RemainingOperation:
    """An operation that the key still uses: an example request, and the calls that replace it."""

    operation: Operation
    used: UsageSummary
    before: RequestExample
    after: Explanation


@dataclass(frozen=True, slots=True)
class GuideData:
    """The data of a guide.

    ``signed``: the merchant's signed requests. ``nowhere``: requests of the key that matched no
    operation. ``renamed``: the number of objects that clients know by another id. ``form`` is None
    while it is unknown whether signatures cover the query.
    """

    key: ListedKey
    since: date | None
    left: tuple[RemainingOperation, ...]
    signed: UsageSummary | None
    nowhere: UsageSummary | None
    renamed: int
    requests_per_hour: int
    form: SignedTargetForm | None
    base_url: str


async def load_guide_data(
    settings: Settings, store: Store, key: ListedKey, since: date | None
) -> GuideData:
    """Collects the data of a key's guide, from ``since`` on. Raises StoreUnavailable."""
    usage_rows = [
        row for row in await load_usage_summaries(store, since) if _is_of_tenant(row, key)
    ]
    environment = settings.environments.map_configured_environments_by_name().get(key.environment)
    return GuideData(
        key,
        since,
        tuple(_iter_operations_used_by_key(settings, usage_rows, key.name)),
        # Signed requests use no API key, so they are counted for the merchant.
        next((row for row in usage_rows if row.operation == SIGNED_OPERATION), None),
        next((row for row in usage_rows if row.key == key.name and not row.operation), None),
        await count_objects_with_legacy_id(store, key.tenant),
        key.requests_per_hour or settings.limits.requests_per_hour,
        await _load_signed_target_form(settings, store, key.environment),
        environment.base_url if environment else "",
    )


def _is_of_tenant(row: UsageSummary, key: ListedKey) -> bool:
    return (row.merchant, row.environment) == (key.merchant, key.environment)


def _iter_operations_used_by_key(
    settings: Settings, usage_rows: Iterable[UsageSummary], key: str
) -> Iterable[RemainingOperation]:
    """Yields the operations that the key used, most used first."""
    operations_by_name = {
        mapped_operation.name: mapped_operation for mapped_operation in (*OPERATIONS, *UNLISTED)
    }
    key_rows = [row for row in usage_rows if row.key == key and row.operation in operations_by_name]
    for row in sorted(key_rows, key=lambda row: (-row.requests, row.operation)):
        operation = operations_by_name[row.operation]
        # Never a recorded request: the guide must not contain client data.
        before = build_request_example(settings, operation)
        data = b"" if before.body is None else json.dumps(before.body).encode()
        yield RemainingOperation(
            operation, row, before, explain_request(settings, before.method, before.target, data)
        )


async def _load_signed_target_form(
    settings: Settings, store: Store, environment: str
) -> SignedTargetForm | None:
    # Configured, else as detected at the service.
    if settings.upstream.signed_target != "auto":
        return settings.upstream.signed_target
    stored_form = (await load_capabilities(ObjectStateStore(store), [environment])).get(
        environment, CAPABILITY_NAME
    )
    return stored_form if stored_form in ("path", "path-and-query") else None


def format_guide_operation_title(operation: Operation) -> str:
    """Returns the method and path in the notation of the legacy document."""
    path = re.sub("{(.*?)}", ":id", operation.path)
    return f"{operation.method} /v1{re.sub('[<>]', '', path)}"


def format_guide_date(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"


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
