"""Checks which account of the service credentials open, with reads only."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from gateway.auth.key_rows import ListedKey, load_credentials
from gateway.auth.signing import SWAPPED_HINT, Credentials
from gateway.payloads import json_codec
from gateway.storage import Store, Tenant
from gateway.upstream.client import UpstreamClient
from mappings.failures import CircuitOpen, Unknown, Unreachable

MAX_CONCURRENT_CHECKS = 8
"""Limits the load on a service."""

OLDEST_RECIPIENTS_TARGET = "/v1/recipients?orderBy=createdAt&sortBy=asc&page=1&pageSize=10"
"""The oldest recipients, which identify an account: new recipients do not change this page."""


FORBIDDEN_ADVICE = (
    "grant the access key its permissions, or add this machine's address to the service's "
    "allow-list"
)
"""What to do about a 403 of the service, which has accepted the signature."""


@dataclass(frozen=True, slots=True)
class AccountProbe:
    """The account that credentials open, by the ids of its oldest recipients, or why none opens."""

    result: Literal["accepted", "refused", "unreachable"]
    recipients: tuple[str, ...] = ()
    reason: str = ""

    @property
    def description(self) -> str:
        if self.result == "accepted" and not self.recipients:
            return "accepted; the account has no recipients, so it cannot be identified"
        return f"{self.result}, {self.reason}" if self.reason else self.result


async def probe_account(
    upstream: UpstreamClient, environment: str, credentials: Credentials
) -> AccountProbe:
    """Fetches the account's oldest recipients."""
    try:
        reply = await upstream.send(
            environment,
            credentials,
            "GET",
            OLDEST_RECIPIENTS_TARGET,
            None,
            request_id=uuid4().hex,
            write=False,
        )
    except CircuitOpen:
        return AccountProbe("unreachable", reason="not tried after a call without an answer")
    except (Unreachable, Unknown) as error:
        return AccountProbe("unreachable", reason=f"GET /v1/recipients: {error}")
    if reply.status == 403:
        return AccountProbe("refused", reason=f"the service answered 403: {FORBIDDEN_ADVICE}")
    if reply.status == 401:
        is_swapped = credentials.look_swapped
        cause = SWAPPED_HINT if is_swapped else "wrong credentials, base_url, clock or vocabulary"
        return AccountProbe("refused", reason=f"the service answered 401: {cause}")
    if reply.status != 200:
        return AccountProbe("unreachable", reason=f"the service answered {reply.status}")
    try:
        recipient_ids = [
            str(recipient["id"])
            for recipient in (json_codec.loads_object(reply.body) or {})["recipients"]
        ]
    except (KeyError, TypeError):
        return AccountProbe("unreachable", reason="the response cannot be parsed")
    return AccountProbe("accepted", tuple(recipient_ids))


def find_credentials_replacement_problem(
    old_probe: AccountProbe, new_probe: AccountProbe
) -> str | None:
    """Returns why new credentials must not replace the old ones; None if they may.

    Both must open the same account, or payments would leave the wrong one.
    """
    if new_probe.result == "refused":
        return f"the service refuses the new credentials: {new_probe.reason}"
    if old_probe.result == "refused":
        return "the service refuses the stored credentials, so the accounts cannot be compared"
    for probe in (new_probe, old_probe):
        if probe.result == "unreachable":
            return f"the accounts could not be compared: {probe.description}"
    # An empty stored account proves nothing about the identity of a filled one.
    if not old_probe.recipients and new_probe.recipients:
        return "the new credentials' account has recipients, but the stored credentials' has none"
    if not set(old_probe.recipients) <= set(new_probe.recipients):
        return (
            "the new credentials' account lacks the stored one's oldest recipients: another account"
        )
    return None


@dataclass(frozen=True, slots=True)
class CredentialCheck:
    """The checked credentials of a tenant, with the names of its keys."""

    tenant: Tenant
    access_key_prefix: str
    key_names: tuple[str, ...]
    probe: AccountProbe


async def probe_tenant_credentials(
    store: Store, upstream: UpstreamClient, listed_keys: Iterable[ListedKey]
) -> list[CredentialCheck]:
    """Checks the credentials of each key's tenant once, concurrently; raises StoreUnavailable."""
    key_names: dict[Tenant, list[str]] = {}
    for key in listed_keys:
        key_names.setdefault(key.tenant, []).append(key.name)
    # By environment, so that one that hangs does not delay the checks of the other.
    semaphores: defaultdict[str, asyncio.Semaphore] = defaultdict(
        lambda: asyncio.Semaphore(MAX_CONCURRENT_CHECKS)
    )

    async def check(tenant: Tenant) -> CredentialCheck:
        async with semaphores[tenant.environment]:
            credentials = await load_credentials(store, tenant)
            probe = await probe_account(upstream, tenant.environment, credentials)
        names = tuple(key_names[tenant])
        return CredentialCheck(tenant, credentials.access_key_prefix, names, probe)

    return await asyncio.gather(*map(check, key_names))


def describe_credential_problems(checks: Sequence[CredentialCheck]) -> list[str]:
    """Describes the problems for operators, one line each.

    One of them is an account that two tenants of an environment open.
    """
    problems = [
        f"{check.tenant}: {check.probe.description}"
        for check in checks
        if check.probe.result != "accepted"
    ]
    tenant_by_recipient: dict[tuple[str, str], Tenant] = {}
    shared_accounts: dict[tuple[Tenant, Tenant], None] = {}
    for tenant, probe in ((check.tenant, check.probe) for check in checks):
        for recipient in probe.recipients:
            first_tenant = tenant_by_recipient.setdefault((tenant.environment, recipient), tenant)
            if first_tenant != tenant:
                shared_accounts[first_tenant, tenant] = None
    return problems + [
        f"same account under two merchant names: {first_tenant} and {second_tenant}"
        for first_tenant, second_tenant in shared_accounts
    ]
