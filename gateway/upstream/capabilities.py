"""Capabilities of the service, found at run time; stored, cached, and shared by all processes."""

from __future__ import annotations

from typing import Any

import structlog

from gateway.auth.signing import SignedTargetForm
from gateway.config.settings import Upstream
from gateway.storage import ObjectStateStore
from gateway.storage.change_poller import ChangeCounts
from gateway.storage.object_state import CAPABILITY_CHANGES as CHANGES

log = structlog.get_logger()


class CapabilityCache:
    """Capabilities by environment and name, from ``load_capabilities``. Reads use memory only.

    Without a database they are remembered for this process.
    """

    def __init__(self, object_state: ObjectStateStore | None = None) -> None:
        self._object_state = object_state
        self._values: dict[tuple[str, str], Any] = {}
        self._change_count = -1

    def get(self, environment: str, name: str) -> Any | None:
        return self._values.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Stores a value; if the database is unavailable, only this process uses it."""
        self._values[environment, name] = value
        if self._object_state is not None:
            try:
                await self._object_state.save_capability(environment, name, value)
            except Exception as error:  # noqa: BLE001 - the client's answer matters more than this
                error_type = {"error.type": type(error).__name__}
                log.warning("capability_not_saved", name=name, **error_type)

    async def reload_if_changed(self, counts: ChangeCounts) -> None:
        """Listens to the change poller; raises StoreUnavailable."""
        if (change_count := counts.get(CHANGES, 0)) != self._change_count:
            await self.reload()
            self._change_count = change_count

    async def reload(self) -> None:
        """Loads what other processes and commands have found; raises StoreUnavailable."""
        if self._object_state is not None:
            self._values |= await self._object_state.load_capabilities()


async def load_capabilities(object_state: ObjectStateStore) -> CapabilityCache:
    capabilities = CapabilityCache(object_state)
    await capabilities.reload()
    return capabilities


CAPABILITY_NAME = "signed_target"


class SignedTargetForms:
    """Decides whether the signed path includes the query (left open: current interface, section 5).

    ``auto`` signs the path alone until a service has refused that and accepted the other form. The
    accepted form is remembered for each environment, and no other form is tried from then on.
    """

    def __init__(self, settings: Upstream, capabilities: CapabilityCache) -> None:
        self._setting = settings.signed_target
        self._capabilities = capabilities

    def find_form(self, environment: str) -> SignedTargetForm | None:
        """Returns the configured or remembered form; None if neither is known."""
        if self._setting == "auto":
            return self._capabilities.get(environment, CAPABILITY_NAME)
        return self._setting

    def select_form(self, environment: str) -> SignedTargetForm:
        return self.find_form(environment) or "path"

    def find_other_form(
        self, environment: str, target: str, refused_form: SignedTargetForm
    ) -> SignedTargetForm | None:
        """Returns the form for another try of a refused call; None if there is none.

        The form may be known by now: a concurrent call may have found it after this one was sent.
        """
        is_worth_trying = "?" in target and self._setting == "auto" and refused_form == "path"
        is_other_possible = is_worth_trying and self.find_form(environment) != "path"
        return "path-and-query" if is_other_possible else None

    async def record_accepted(self, environment: str, target: str, form: SignedTargetForm) -> None:
        """Records that a call signed in this form was accepted; ignored without a query."""
        # Without a query, both forms are equal.
        if "?" not in target or self.find_form(environment):
            return
        await self._capabilities.put(environment, CAPABILITY_NAME, form)
