"""Ids of legacy clients (section 2, Identifiers)."""

from dataclasses import dataclass, field

from gateway.simulator.state import Tenant, build_legacy_id


@dataclass
class IdMapper:
    """Maps ids between clients and the service for one request.

    If a request uses the service's own id of an object, its response uses it too.
    """

    tenant: Tenant
    service_spellings: set[str] = field(default_factory=set)

    def resolve_id(self, client_id: str) -> str:
        """Returns the service's id for a client's; an unknown one is returned unchanged."""
        # Only ids that were shortened are in the table.
        if client_id in self.tenant.service_ids_by_legacy_id:
            return self.tenant.service_ids_by_legacy_id[client_id]
        self.service_spellings.add(client_id)
        return client_id

    def build_client_id(self, service_id: str) -> str:
        return (
            service_id
            if service_id in self.service_spellings
            else build_legacy_id(self.tenant.merchant, service_id)
        )
