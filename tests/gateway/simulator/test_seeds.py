from collections import Counter

from gateway.simulator import Service
from gateway.simulator.recipients import is_payable

RECIPIENT_COUNT = 400


async def test_seeded_recipients_are_varied(connect):
    client = await connect()
    seeded = client.service.seed_recipients(RECIPIENT_COUNT, 1)
    assert len({each.id for each in seeded}) == RECIPIENT_COUNT
    statuses = Counter(each.status for each in seeded)
    assert set(statuses) == {"active", "incomplete", "suspended", "archived"}
    assert statuses["active"] > RECIPIENT_COUNT / 2
    compliance = {each.compliance_status for each in seeded}
    assert compliance == {"pending", "review", "verified", "blocked"}
    methods = {each.primary_account.type if each.primary_account else None for each in seeded}
    assert methods == {None, "bank-transfer", "wallet", "check", "mobile-wallet"}
    assert len({each.address.get("country") for each in seeded}) > 10
    assert any(not each.fields["name"].isascii() for each in seeded)
    assert all(each.fields["email"].split("@")[1].startswith("example.") for each in seeded)
    created = [each.created_at for each in seeded]
    assert (max(created) - min(created)).days > 600
    assert all(each.created_at <= each.updated_at for each in seeded)
    assert any(each.created_at < each.updated_at for each in seeded)
    assert all(is_payable(each) for each in seeded if each.status == "active")


async def test_seeded_recipients_are_valid(connect):
    client = await connect()
    names = ("referenceId", "type", "email", "name", "firstName", "lastName", "dob", "address")
    for each in client.service.seed_recipients(120, 2):
        sent = {name: each.fields[name] for name in names if name in each.fields}
        recipient = await client.create_recipient(
            **sent, governmentIds=each.fields["governmentIds"]
        )
        for account in each.accounts:
            await client.create_account(recipient, type=account.type, **account.fields)


async def test_seeded_recipients_are_listed(connect):
    client = await connect()
    seeded = client.service.seed_recipients(RECIPIENT_COUNT, 1)
    answer = (await client.call("GET", "/v1/recipients?pageSize=1000")).json
    shown = [each for each in seeded if each.status != "archived"]
    assert answer["meta"]["records"] == len(answer["recipients"]) == len(shown)


def test_same_seed_gives_same_data():
    def made(seed):
        service = Service()
        recipients = service.seed_recipients(20, seed)
        service.seed_payments(recipients[0].id, 3, seed)
        service.seed_offline_payments(recipients[0].id, 3, seed)
        return recipients

    assert made(7) == made(7)
    assert made(7) != made(8)
