"""Collects the data of a migration guide: the operations that a key used, and facts about the key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from gateway.auth.key_rows import ListedKey
from gateway.auth.signing import Form
from gateway.config.settings import Settings
from gateway.docgen.explain import Explained, explain_request
from gateway.docgen.request_examples import RequestExample, build_request_example
from gateway.storage import Ledger, Store
from gateway.storage.id_rows import count_ids
from gateway.storage.usage_rows import Used, used_since
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.signed_target import NAME
from mappings import OPERATIONS, UNLISTED
from mappings.grammar import Operation

SIGNED = "signed"
"""The operation name under which signed requests are counted."""


@dataclass(frozen=True, slots=True)
class Left:
    """An operation that the key still uses: an example request, and the calls that replace it."""

    operation: Operation
    used: Used
    before: RequestExample
    after: Explained


@dataclass(frozen=True, slots=True)
class Gathered:
    """The data of a guide.

    ``signed``: the merchant's signed requests. ``nowhere``: requests of the key that matched no
    operation. ``renamed``: the number of objects that clients know by another id. ``form`` is None
    while it is unknown whether signatures cover the query.
    """

    key: ListedKey
    since: date | None
    left: tuple[Left, ...]
    signed: Used | None
    nowhere: Used | None
    renamed: int
    requests_per_hour: int
    form: Form | None
    base_url: str


async def load_guide_data(
    settings: Settings, store: Store, key: ListedKey, since: date | None
) -> Gathered:
    """Collects the data of a key's guide, from ``since`` on. Raises StoreUnavailable."""
    used = [one for one in await used_since(store, since) if _is_of(one, key)]
    environment = settings.environments.configured().get(key.environment)
    return Gathered(
        key,
        since,
        tuple(_left(settings, used, key.name)),
        next((one for one in used if one.operation == SIGNED), None),
        next((one for one in used if one.key == key.name and not one.operation), None),
        await count_ids(store, key.owner),
        key.requests_per_hour or settings.limits.requests_per_hour,
        await _form(settings, store, key.environment),
        environment.base_url if environment else "",
    )


def _is_of(one: Used, key: ListedKey) -> bool:
    return (one.merchant, one.environment) == (key.merchant, key.environment)


def _left(settings: Settings, used: Iterable[Used], key: str) -> Iterable[Left]:
    """The operations that the key used, most used first."""
    known = {one.name: one for one in (*OPERATIONS, *UNLISTED)}
    mine = [one for one in used if one.key == key and one.operation in known]
    for one in sorted(mine, key=lambda one: (-one.requests, one.operation)):
        operation = known[one.operation]
        # Never a recorded request: the guide must not contain client data.
        before = build_request_example(settings, operation)
        data = b"" if before.body is None else json.dumps(before.body).encode()
        yield Left(
            operation, one, before, explain_request(settings, before.method, before.target, data)
        )


async def _form(settings: Settings, store: Store, environment: str) -> Form | None:
    # Configured, else as detected at the service.
    if settings.upstream.signed_target != "auto":
        return settings.upstream.signed_target
    found = (await load_capabilities(Ledger(store), [environment])).get(environment, NAME)
    return found if found in ("path", "path-and-query") else None


def format_guide_title(operation: Operation) -> str:
    """Method and path, in the notation of the legacy document."""
    path = re.sub("{(.*?)}", ":id", operation.path)
    return f"{operation.method} /v1{re.sub('[<>]', '', path)}"


def format_guide_date(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"
