from collections import Counter

from gateway.simulator import Service
from gateway.simulator.recipients import is_recipient_payable

RECIPIENT_COUNT = 400


async def test_seeded_recipients_are_varied(connect_client):
    client = await connect_client()
    seeded_recipients = client.service.seed_recipients(RECIPIENT_COUNT, 1)
    assert len({recipient.id for recipient in seeded_recipients}) == RECIPIENT_COUNT
    statuses = Counter(recipient.status for recipient in seeded_recipients)
    assert set(statuses) == {"active", "incomplete", "suspended", "archived"}
    assert statuses["active"] > RECIPIENT_COUNT / 2
    compliance = {recipient.compliance_status for recipient in seeded_recipients}
    assert compliance == {"pending", "review", "verified", "blocked"}
    methods = {
        recipient.primary_account.type if recipient.primary_account else None
        for recipient in seeded_recipients
    }
    assert methods == {None, "bank-transfer", "wallet", "check", "mobile-wallet"}
    assert len({recipient.address.get("country") for recipient in seeded_recipients}) > 10
    assert any(not recipient.fields["name"].isascii() for recipient in seeded_recipients)
    assert all(
        recipient.fields["email"].split("@")[1].startswith("example.")
        for recipient in seeded_recipients
    )
    creation_times = [recipient.created_at for recipient in seeded_recipients]
    assert (max(creation_times) - min(creation_times)).days > 600
    assert all(recipient.created_at <= recipient.updated_at for recipient in seeded_recipients)
    assert any(recipient.created_at < recipient.updated_at for recipient in seeded_recipients)
    assert all(
        is_recipient_payable(recipient)
        for recipient in seeded_recipients
        if recipient.status == "active"
    )


async def test_seeded_recipients_are_valid(connect_client):
    client = await connect_client()
    names = ("referenceId", "type", "email", "name", "firstName", "lastName", "dob", "address")
    for seeded_recipient in client.service.seed_recipients(120, 2):
        sent_fields = {
            name: seeded_recipient.fields[name] for name in names if name in seeded_recipient.fields
        }
        recipient = await client.create_recipient(
            **sent_fields, governmentIds=seeded_recipient.fields["governmentIds"]
        )
        for account in seeded_recipient.accounts:
            await client.create_account(recipient, type=account.type, **account.fields)


def test_same_seed_gives_same_data():
    def build_recipients(seed):
        service = Service()
        recipients = service.seed_recipients(20, seed)
        service.seed_payments(recipients[0].id, 3, seed)
        return recipients

    assert build_recipients(7) == build_recipients(7)
    assert build_recipients(7) != build_recipients(8)
