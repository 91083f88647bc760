"""Whether the signed path includes the query, which the current document (section 5) leaves open.

``auto`` signs the path alone until a service has refused that and accepted the other form. The
accepted form is remembered for each environment, and no other form is tried from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.auth.signing import Form
    from gateway.config.settings import Upstream

NAME = "signed_target"

log = structlog.get_logger()


class Learned(Protocol):
    """Stores what was found out about an environment, across restarts."""

    def get(self, environment: str, name: str) -> Any | None: ...

    async def put(self, environment: str, name: str, value: Any) -> None: ...


class Forgetful:
    """Stores nothing."""

    def get(self, environment: str, name: str) -> None: ...

    async def put(self, environment: str, name: str, value: Any) -> None: ...


class SignedTarget:
    def __init__(self, settings: Upstream, environments: Iterable[str], learned: Learned) -> None:
        self._setting = settings.signed_target
        self._learned = learned
        self._known: dict[str, Form] = {}
        for environment in environments:
            if (form := learned.get(environment, NAME)) in ("path", "path-and-query"):
                self._known[environment] = form

    def known(self, environment: str) -> Form | None:
        """Returns the configured or remembered form; None while it is open."""
        return self._known.get(environment) if self._setting == "auto" else self._setting

    def first(self, environment: str) -> Form:
        return self.known(environment) or "path"

    def other(self, environment: str, target: str, refused: Form) -> Form | None:
        """Returns the form for another try of a refused call; None if there is none.

        Also if the form is known by now: a concurrent call may have found it after this one was
        sent.
        """
        tells = "?" in target and self._setting == "auto" and refused == "path"
        return "path-and-query" if tells and self.known(environment) != "path" else None

    async def accepted(self, environment: str, target: str, form: Form) -> None:
        """Records that a call signed in this form was accepted; ignored without a query."""
        # Without a query both forms are equal.
        if "?" not in target or self.known(environment):
            return
        self._known[environment] = form
        try:
            await self._learned.put(environment, NAME, form)
        except Exception as error:  # noqa: BLE001 - the client's answer matters more than this
            log.warning("capability_not_saved", name=NAME, **{"error.type": type(error).__name__})
