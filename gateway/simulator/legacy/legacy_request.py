"""The authenticated request that an operation of the legacy interface gets."""

from dataclasses import dataclass, field

from gateway.simulator.accepted_request import AcceptedRequest, Page, parse_page
from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import payment_bodies, views
from gateway.simulator.operations import DELETED
from gateway.simulator.state import Recipient, build_legacy_id


@dataclass
class LegacyRequest(AcceptedRequest):
    """Maps ids between the client and the service (section 2, Identifiers).

    If a request uses the service's own id of an object, its response uses it too.
    """

    answer_to_deleted_recipients = DELETED
    build_recipient = views.build_recipient
    build_batch = views.build_batch
    build_payment = views.build_payment
    build_listed_payment = views.build_listed_payment
    parse_batch_currency = payment_bodies.parse_batch_currency
    parse_changed_currency = payment_bodies.parse_changed_currency
    parse_payment_order = payment_bodies.parse_payment_order
    parse_payment_change = payment_bodies.parse_payment_change

    service_spellings: set[str] = field(default_factory=set)

    def resolve_id(self, client_id: str) -> str:
        # Only ids that were shortened are in the table; others are the service's own.
        if client_id in self.tenant.service_ids_by_legacy_id:
            return self.tenant.service_ids_by_legacy_id[client_id]
        self.service_spellings.add(client_id)
        return client_id

    def build_client_id(self, service_id: str) -> str:
        if service_id in self.service_spellings:
            return service_id
        return build_legacy_id(self.tenant.merchant, service_id)

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Raises ApiError `not_found`, also for a deleted recipient: deletion is permanent here."""
        recipient = self.tenant.recipients.get(self.resolve_id(recipient_id))
        if recipient is None or recipient.is_archived:
            raise build_not_found_error("Recipient")
        return recipient

    def require_path_recipient(self) -> Recipient:
        recipient = self.require_recipient(self.path_ids[0])
        if not any(logged is recipient for logged in self.logged_recipients):
            self.logged_recipients.append(recipient)
        return recipient

    def build_activity(self, recipient: Recipient, activity: JsonObject) -> JsonObject:
        # The log has the service's id, which legacy clients do not know.
        client_id = self.build_client_id(recipient.id)
        return activity | {
            name: activity[name].replace(recipient.id, client_id)
            for name in ("url", "request", "response")
        }

    def parse_ids(self) -> list[str]:
        """Parses `ids` without duplicates. Raises ApiError."""
        ids = self.body.get("ids")
        problems = Problems()
        if ids is None or ids == []:
            problems.add_empty_field("ids")
        elif not isinstance(ids, list):
            problems.add_invalid_field("ids", "Must be an array")
        problems.raise_if_any()
        # A value that is not text is kept as text: it matches no id and answers `not_found`.
        return list(dict.fromkeys(map(str, ids or [])))

    def parse_page(self) -> Page:
        # Lists have no status for an invalid number (section 4.1), so the default applies.
        return parse_page(Problems(), self.query, self.tenant.options.max_page_size)
