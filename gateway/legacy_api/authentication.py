"""Identifies the caller of a legacy request and counts the request against its rate limit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gateway.admission.limits import Admission, RateLimiter
from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.config.settings import Settings
from gateway.http.client_address import Address, format_address_rate_limit_name
from gateway.http.delivery import is_client_disconnected
from gateway.http.request import HttpRequest
from gateway.legacy_api.request_context import RequestContext
from gateway.migration.routing import ServiceRouter
from gateway.storage import StoreUnavailable
from gateway.writes.caller import Caller
from mappings import errors
from mappings.effects import Operation
from mappings.failures import Invalid


class CallerAuthenticator:
    """Checks the API key, the client's address and the rate limit, in this order."""

    def __init__(
        self,
        settings: Settings,
        key_store: ApiKeyStore,
        limits: RateLimiter,
        unauthenticated_limits: RateLimiter,
        forwarding: ServiceRouter,
    ) -> None:
        self._key_store = key_store
        self._limits = limits
        self._unauthenticated_limits = unauthenticated_limits
        self._forwarding = forwarding
        self._environments = settings.environments.map_configured_environments_by_name()
        self._requests_per_hour = settings.limits.requests_per_hour

    async def authenticate_and_rate_limit(
        self, request: HttpRequest, context: RequestContext, operation: Operation
    ) -> Admission:
        """Identifies the caller and counts the request; raises Invalid if the key is refused."""
        address = context.address
        if operation.is_keyless:
            context.caller = await self._find_untranslated_caller(
                request, context, operation, address
            )
            name = f"address {format_address_rate_limit_name(address)}"
            return await self._unauthenticated_limits.admit(name, self._requests_per_hour)
        header_values = request.headers.getall("X-API-Key", [])
        # With several keys, a proxy in front may check one while the gateway uses another.
        key = (
            await self._key_store.find_active_key(header_values[0].strip())
            if len(header_values) == 1
            else None
        )
        # Keys stay stored when an environment is taken out of the configuration.
        if key is None or key.environment not in self._environments:
            context.log_fields["reason"] = _describe_refused_key(header_values, key)
            raise Invalid(errors.INVALID_KEY)
        # While a body is read, its connection counts for its tenant, and others for their address.
        if operation.body_shape is not None or self._forwarding.modes.switched_tenants:
            request.connection.attribute_to_tenant(key.tenant)
        # The client may have disconnected during the lookup, before there was a caller to mark.
        context.caller = Caller(
            key,
            context.request_id,
            is_disconnected=request.connection.transport is None,
            is_connection_closed=partial(is_client_disconnected, request)
            if operation.is_write
            else bool,
            received_at=context.start_time,
        )
        if key.allowed_ips and (address is None or not key.admits(address)):
            # The reason is only logged: the response does not say which check failed.
            context.log_fields["reason"] = "the client's address is not in the key's allowed_ips"
            raise Invalid(errors.NOT_AUTHORIZED)
        return await self._limits.admit(key.id, key.requests_per_hour or self._requests_per_hour)

    async def _find_untranslated_caller(
        self,
        request: HttpRequest,
        context: RequestContext,
        operation: Operation,
        address: Address | None,
    ) -> Caller | None:
        """Finds the caller of an operation that needs no key, if the key selects the service."""
        header_values = request.headers.getall("X-API-Key", [])
        if not (self._forwarding.modes.switched_tenants and len(header_values) == 1):
            return None
        try:
            key = await self._key_store.find_active_key(header_values[0].strip())
        # The operation needs no database, so an outage must not stop it.
        except StoreUnavailable:
            return None
        if key is None or (key.allowed_ips and (address is None or not key.admits(address))):
            return None
        is_translated = self._forwarding.is_translated(key, operation)
        return None if is_translated else Caller(key, context.request_id)


def _describe_refused_key(header_values: Sequence[str], key: ApiKey | None) -> str:
    if len(header_values) != 1:
        return "more than one API key" if header_values else "no API key"
    reason = "of an environment that is not configured" if key else "unknown or revoked"
    return f"the API key is {reason}"
