"""The form of the target that is signed, which the document leaves open."""

from gateway.auth.signing import SignedTargetForm
from gateway.config.settings import Upstream
from gateway.storage.capability_cache import CapabilityCache

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
