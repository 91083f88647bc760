"""Authentication and rate limits of signed requests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.limits import Admission, Limits
from gateway.auth.signing import Credentials
from gateway.config.settings import Settings
from gateway.http.client_address import Address, counted_as
from gateway.signed_api.credentials import SignatureHeader
from gateway.signed_api.refusals import Refusal, refuse_invalid_key
from gateway.signed_api.signers import Signer, Signers
from gateway.storage import Tenant
from gateway.upstream.clock import Clock
from mappings import errors


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a signed request.

    ``tenant`` and ``credentials`` are None for an unknown access key whose requests are forwarded.
    """

    environment: str
    owner: Tenant | None
    requests_per_hour: int
    pair: Credentials | None = None


class Senders:
    def __init__(
        self,
        settings: Settings,
        signers: Signers,
        limits: Limits,
        clock: Clock,
        *,
        strangers: Limits,
    ) -> None:
        self._signers = signers
        self._limits = limits
        self._strangers = strangers
        self._clock = clock
        self._requests_per_hour = settings.limits.requests_per_hour
        forwards = settings.signed.unknown_keys == "forward"
        self._unknown_go_to = settings.signed.environment if forwards else ""

    async def held(self, credentials: SignatureHeader, address: Address | None) -> list[Signer]:
        """Finds the signers that may have signed a request.

        Returns an empty list if the access key is unknown and is forwarded. Raises Refusal for the
        key, the address and the timestamp, in this order, and StoreUnavailable.
        """
        held = await self._signers.find(credentials.access_key)
        in_use = [one for one in held if not one.is_revoked]
        # Not treated as unknown: an unknown key may be forwarded, a revoked one never.
        if held and not in_use:
            raise refuse_invalid_key("every API key with these credentials is revoked")
        if not held and not self._unknown_go_to:
            raise refuse_invalid_key("the access key is unknown")
        admitted = [one for one in in_use if one.admits(address)]
        if in_use and not admitted:
            why = "the client's address is not in the allowed_ips of any key with these credentials"
            raise Refusal(errors.NOT_AUTHORIZED, why)
        fresh = [one for one in admitted if self._is_fresh(credentials, one.owner.environment)]
        if not fresh and (held or not self._is_fresh(credentials, self._unknown_go_to)):
            raise refuse_invalid_key("the timestamp is more than 30 seconds old or in the future")
        return fresh

    def _is_fresh(self, credentials: SignatureHeader, environment: str) -> bool:
        # The service checks the timestamp again, so its clock decides; this machine's clock is
        # used until a response has shown how far the two are apart.
        return credentials.is_fresh(self._clock.wall() + self._clock.offset(environment))

    def proven(self, signers: Sequence[Signer], found: Sequence[bool]) -> Sender:
        """Returns the sender whose secret matches, given the result for each signer.

        Raises Refusal if there is none, or more than one.
        """
        if not signers:
            return Sender(self._unknown_go_to, None, self._requests_per_hour)
        its = [one for one, is_one in zip(signers, found, strict=True) if is_one]
        if len(its) > 1:  # the same credentials in both environments: ambiguous
            raise refuse_invalid_key("the signature is good in both environments")
        if not its:
            raise refuse_invalid_key("the signature is wrong")
        signer = its[0]
        most = signer.requests_per_hour(self._requests_per_hour)
        return Sender(signer.owner.environment, signer.owner, most, signer.pair)

    async def admit(
        self, sender: Sender, credentials: SignatureHeader, address: Address | None
    ) -> Admission:
        """Counts the request, and returns the tightest limit that applies to it.

        A tenant has one limit for all its signed requests: the highest limit among its API keys.
        A request with an unknown key counts against its address first, and then against the key.
        """
        if sender.owner is not None:
            return await self._limits.admit(f"signed {sender.owner}", sender.requests_per_hour)
        name = f"signed address {counted_as(address)}"
        admission = await self._strangers.admit(name, self._requests_per_hour)
        if not admission.admitted:
            return admission
        # Hashed, so that listings of limits do not show access keys of strangers.
        key = hashlib.sha256(credentials.access_key.encode()).hexdigest()[:32]
        name = f"signed key {sender.environment} {key}"
        other = await self._strangers.admit(name, self._requests_per_hour)
        # A refusal sorts before any admission.
        return min(admission, other, key=lambda one: (one.admitted, one.remaining))
