"""The authenticated request that an operation of the legacy interface gets."""

from dataclasses import dataclass, field

from gateway.simulator.accepted_request import AcceptedRequest, Page, parse_page
from gateway.simulator.errors import Problems
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
    parse_payment = payment_bodies.parse_payment
    parse_payment_change = payment_bodies.parse_payment_change

    service_spellings: set[str] = field(default_factory=set)

    def resolve_id(self, client_id: str) -> str:
        service_id = self.tenant.service_ids_by_legacy_id.get(client_id, client_id)
        # An id that is not in the table is the service's own.
        if service_id == client_id:
            self.service_spellings.add(client_id)
        return service_id

    def build_client_id(self, service_id: str) -> str:
        if service_id in self.service_spellings:
            return service_id
        return build_legacy_id(self.tenant.merchant, service_id)

    def is_readable(self, recipient: Recipient) -> bool:
        return not recipient.is_archived  # Deletion is permanent here.

    def build_activity(self, recipient: Recipient, activity: JsonObject) -> JsonObject:
        # The log has the service's id, which legacy clients do not know.
        client_id = self.build_client_id(recipient.id)
        return activity | {
            name: activity[name].replace(recipient.id, client_id)
            for name in ("url", "request", "response")
        }

    def parse_page(self) -> Page:
        # Lists have no status for an invalid number (section 4.1), so the default applies.
        return parse_page(Problems(), self.query, self.tenant.options.max_page_size)
