"""What a legacy client calls things (section 2, Identifiers)."""

from dataclasses import dataclass, field

from gateway.simulator.legacy_ids import legacy_id
from gateway.simulator.state import World


@dataclass
class Names:
    """Of one request: an id that it spelled as the service does is spelled so in its answer."""

    world: World
    spelled: set[str] = field(default_factory=set)

    def real(self, wanted: str) -> str:
        """The service's own id; one that nobody knows stays as it is."""
        if wanted in self.world.legacy_ids:
            return self.world.legacy_ids[wanted]
        self.spelled.add(wanted)
        return wanted

    def shown(self, real: str) -> str:
        return real if real in self.spelled else legacy_id(self.world.merchant, real)
