"""Whether the query is signed: what the current document (section 5) leaves open.

``auto`` signs over the path alone until a service has refused that and accepted the other form.
What it accepted is remembered for each environment, and no other form is tried from then on.
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
    """What was found out about an environment, and is worth keeping over a restart."""

    def get(self, environment: str, name: str) -> Any | None: ...

    async def put(self, environment: str, name: str, value: Any) -> None: ...


class Forgetful:
    """Keeps nothing over a restart."""

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
        """The form that is set or was found out; None while it is open."""
        return self._known.get(environment) if self._setting == "auto" else self._setting

    def first(self, environment: str) -> Form:
        return self.known(environment) or "path"

    def other(self, environment: str, target: str, refused: Form) -> Form | None:
        """The form to try a refused call in once more; None where there is none to try.

        Not only while it is open: another call may have found it out since this one was sent.
        """
        tells = "?" in target and self._setting == "auto" and refused == "path"
        return "path-and-query" if tells and self.known(environment) != "path" else None

    async def accepted(self, environment: str, target: str, form: Form) -> None:
        """A call was accepted that was signed in this form; one without a query tells nothing."""
        if "?" not in target or self.known(environment):
            return
        self._known[environment] = form
        try:
            await self._learned.put(environment, NAME, form)
        except Exception as error:  # noqa: BLE001 - the answer in hand is worth more than this
            log.warning("capability_not_saved", name=NAME, **{"error.type": type(error).__name__})
