"""Identifies the caller of a legacy request and counts the request against its rate limit."""

from collections.abc import Awaitable
from functools import partial

from gateway.admission.limits import Admission, RateLimiter
from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.config.settings import Settings
from gateway.http import request_reader
from gateway.http.client_address import (
    format_address_rate_limit_name,
    parse_networks,
    resolve_client_address,
)
from gateway.http.delivery import is_client_disconnected
from gateway.http.request import HttpRequest
from gateway.legacy_api.request_context import LegacyClient, RequestContext
from gateway.migration.routing import ServiceRouter
from gateway.storage import StoreUnavailable
from gateway.writes.write_request import Caller
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
        service_router: ServiceRouter,
    ) -> None:
        self._key_store = key_store
        self._limits = limits
        self._unauthenticated_limits = unauthenticated_limits
        self._service_router = service_router
        self._trusted_proxies = parse_networks(settings.server.trusted_proxies)
        self._environments = settings.environments.map_configured_environments_by_name()
        self._requests_per_hour = settings.limits.requests_per_hour

    def identify_client(self, request: HttpRequest) -> LegacyClient:
        """Derives the client from the header fields, which its connection repeats."""
        forwarded_for = request.headers.getall("X-Forwarded-For", ())
        key_lines = request.headers.getall("X-API-Key", ())
        # With several keys, a proxy in front may check one while the gateway uses another.
        api_key = key_lines[0].strip() if len(key_lines) == 1 else ""
        address = resolve_client_address(request.remote, forwarded_for, self._trusted_proxies)
        client = request.fields.client = LegacyClient(
            address,
            None if address is None else str(address),
            request_reader.find_client_request_id(request),
            api_key,
            self._key_store.digest_key(api_key),
            len(key_lines),
        )
        return client

    def authenticate_and_rate_limit(
        self, request: HttpRequest, context: RequestContext, operation: Operation
    ) -> Awaitable[Admission]:
        """Identifies the caller and counts the request; raises Invalid if the key is refused."""
        key = self._key_store.find_cached_key(context.client.key_digest)
        if key is None or operation.is_keyless:
            return self._load_key_and_admit(request, context, operation)
        return self._admit(request, context, operation, key)

    async def _load_key_and_admit(
        self, request: HttpRequest, context: RequestContext, operation: Operation
    ) -> Admission:
        client = context.client
        if operation.is_keyless:
            context.caller = await self._find_untranslated_caller(context, operation)
            name = f"address {format_address_rate_limit_name(client.address)}"
            return await self._unauthenticated_limits.admit(name, self._requests_per_hour)
        key = await self._key_store.find_active_key(client.api_key)
        return await self._admit(request, context, operation, key)

    def _admit(
        self,
        request: HttpRequest,
        context: RequestContext,
        operation: Operation,
        key: ApiKey | None,
    ) -> Awaitable[Admission]:
        client, connection = context.client, request.connection
        # Keys stay stored when an environment is taken out of the configuration.
        if key is None or key.environment not in self._environments:
            context.log_fields["reason"] = _describe_refused_key(client.key_count, key)
            raise Invalid(errors.INVALID_KEY)
        # While a body is read, its connection counts for its tenant, and others for their address.
        is_body_read = (
            operation.body_shape is not None or self._service_router.modes.switched_tenants
        )
        if is_body_read and not request.body.is_complete:
            connection.attribute_to_tenant(key.tenant)
        # The client may have disconnected during the lookup, before there was a caller to mark.
        context.caller = Caller(
            key,
            context.request_id,
            is_disconnected=connection.transport is None,
            is_connection_closed=partial(is_client_disconnected, request)
            if operation.is_write
            else bool,
            received_at=context.start_time,
        )
        if key.allowed_ips and not key.admits(client.address):
            # The reason is only logged: the response does not say which check failed.
            context.log_fields["reason"] = "the client's address is not in the key's allowed_ips"
            raise Invalid(errors.NOT_AUTHORIZED)
        return self._limits.admit(key.id, key.requests_per_hour or self._requests_per_hour)

    async def _find_untranslated_caller(
        self, context: RequestContext, operation: Operation
    ) -> Caller | None:
        """Finds the caller of an operation that needs no key, if the key selects the service."""
        client = context.client
        if not (self._service_router.modes.switched_tenants and client.key_count == 1):
            return None
        try:
            key = await self._key_store.find_active_key(client.api_key)
        # The operation needs no database, so an outage must not stop it.
        except StoreUnavailable:
            return None
        if key is None or not key.admits(client.address):
            return None
        is_translated = self._service_router.is_translated(key, operation)
        return None if is_translated else Caller(key, context.request_id)


def _describe_refused_key(key_count: int, key: ApiKey | None) -> str:
    if key_count != 1:
        return "more than one API key" if key_count else "no API key"
    reason = "of an environment that is not configured" if key else "unknown or revoked"
    return f"the API key is {reason}"
