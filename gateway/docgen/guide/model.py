"""Collects the data of a migration guide: the operations that a key used, and facts about the key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from gateway.auth.key_rows import ListedKey
from gateway.auth.signing import SignedTargetForm
from gateway.config.settings import Settings
from gateway.docgen.explain import Explanation, explain_request
from gateway.docgen.request_examples import RequestExample, build_request_example
from gateway.storage import ObjectStateStore, Store
from gateway.storage.id_rows import count_objects_with_legacy_id
from gateway.storage.request_counts import UsageSummary, load_usage_summaries
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.signed_target import CAPABILITY_NAME
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation

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
