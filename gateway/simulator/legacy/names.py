"""Ids of legacy clients (section 2, Identifiers)."""

from dataclasses import dataclass, field

from gateway.simulator.legacy_ids import legacy_id
from gateway.simulator.state import World


@dataclass
class Names:
    """Maps ids between clients and the service for one request.

    If a request uses the service's own id of an object, its response uses it too.
    """

    world: World
    spelled: set[str] = field(default_factory=set)

    def real(self, wanted: str) -> str:
        """Return the service's id for a client's; an unknown one is returned unchanged."""
        if wanted in self.world.legacy_ids:
            return self.world.legacy_ids[wanted]
        self.spelled.add(wanted)
        return wanted

    def shown(self, real: str) -> str:
        return real if real in self.spelled else legacy_id(self.world.merchant, real)
