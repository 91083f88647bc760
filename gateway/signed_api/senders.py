"""Authentication and rate limits of signed requests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.limits import Admission, RateLimiter
from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.http.client_address import Address, format_address_rate_limit_name
from gateway.signed_api.credentials import SignatureHeader
from gateway.signed_api.refusals import Refusal, build_invalid_key_refusal
from gateway.signed_api.signers import Signer, SignerStore
from gateway.storage import Tenant
from gateway.upstream.clock import ServiceClock
from mappings import errors


@dataclass(frozen=True, slots=True)
class AuthenticatedSender:
    """The sender of a signed request.

    ``tenant`` and ``credentials`` are None for an unknown access key whose requests are forwarded.
    """

    environment: str
    tenant: Tenant | None
    requests_per_hour: int
    credentials: Credentials | None = None


class SenderAuthenticator:
    def __init__(
        self,
        settings: Settings,
        signers: SignerStore,
        limits: RateLimiter,
        clock: ServiceClock,
        *,
        unauthenticated_limits: RateLimiter,
    ) -> None:
        self._signers = signers
        self._limits = limits
        self._unauthenticated_limits = unauthenticated_limits
        self._clock = clock
        self._requests_per_hour = settings.limits.requests_per_hour
        forwards_unknown_keys = settings.signed.unknown_keys == "forward"
        self._unknown_key_environment = settings.signed.environment if forwards_unknown_keys else ""

    async def load_admissible_signers(
        self, signature_header: SignatureHeader, address: Address | None
    ) -> list[Signer]:
        """Finds the signers that may have signed a request.

        Returns an empty list if the access key is unknown and is forwarded. Raises Refusal for the
        key, the address and the timestamp, in this order, and StoreUnavailable.
        """
        signers = await self._signers.find_signers(signature_header.access_key)
        active_signers = [signer for signer in signers if not signer.is_revoked]
        # A revoked key does not count as unknown: an unknown key may be forwarded, a revoked one
        # never.
        if signers and not active_signers:
            raise build_invalid_key_refusal("every API key with these credentials is revoked")
        if not signers and not self._unknown_key_environment:
            raise build_invalid_key_refusal("the access key is unknown")
        admitted_signers = [signer for signer in active_signers if signer.admits(address)]
        if active_signers and not admitted_signers:
            reason = (
                "the client's address is not in the allowed_ips of any key with these credentials"
            )
            raise Refusal(errors.NOT_AUTHORIZED, reason)
        fresh_signers = [
            signer
            for signer in admitted_signers
            if self._is_fresh(signature_header, signer.tenant.environment)
        ]
        if not fresh_signers and (
            signers or not self._is_fresh(signature_header, self._unknown_key_environment)
        ):
            raise build_invalid_key_refusal(
                "the timestamp is more than 30 seconds old or in the future"
            )
        return fresh_signers

    def _is_fresh(self, signature_header: SignatureHeader, environment: str) -> bool:
        # The service checks the timestamp again, so its clock decides; this machine's clock is
        # used until a response has shown how far the two are apart.
        return signature_header.is_fresh(self._clock.wall() + self._clock.offset(environment))

    def select_matching_sender(
        self, signers: Sequence[Signer], matches: Sequence[bool]
    ) -> AuthenticatedSender:
        """Returns the sender whose secret matches, given the result for each signer.

        Raises Refusal if there is none, or more than one.
        """
        if not signers:
            # The gateway cannot verify this signature; the service does.
            return AuthenticatedSender(self._unknown_key_environment, None, self._requests_per_hour)
        matching_signers = [
            candidate for candidate, is_match in zip(signers, matches, strict=True) if is_match
        ]
        # Guessing could move money in the live environment for a request meant as a test.
        if len(matching_signers) > 1:  # the same credentials in both environments: ambiguous
            raise build_invalid_key_refusal("the signature is valid in both environments")
        if not matching_signers:
            raise build_invalid_key_refusal("the signature does not match")
        signer = matching_signers[0]
        requests_per_hour = signer.find_highest_requests_per_hour(self._requests_per_hour)
        return AuthenticatedSender(
            signer.tenant.environment, signer.tenant, requests_per_hour, signer.credentials
        )

    async def admit(
        self,
        sender: AuthenticatedSender,
        signature_header: SignatureHeader,
        address: Address | None,
    ) -> Admission:
        """Counts the request, and returns the tightest limit that applies to it.

        A tenant has one limit for all its signed requests: the highest limit among its API keys.
        A request with an unknown key counts against its address first, and then against the key.
        """
        if sender.tenant is not None:
            return await self._limits.admit(f"signed {sender.tenant}", sender.requests_per_hour)
        name = f"signed address {format_address_rate_limit_name(address)}"
        admission = await self._unauthenticated_limits.admit(name, self._requests_per_hour)
        if not admission.is_admitted:
            return admission
        # Hashed, so that listings of limits do not show access keys of strangers.
        key = hashlib.sha256(signature_header.access_key.encode()).hexdigest()[:32]
        name = f"signed key {sender.environment} {key}"
        key_admission = await self._unauthenticated_limits.admit(name, self._requests_per_hour)
        # A refusal sorts before any admission.
        return min(
            admission, key_admission, key=lambda result: (result.is_admitted, result.remaining)
        )
