"""The tables of object state, and the move of the previous version's rows into them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import bindparam, select, text

from gateway.config.settings import State
from gateway.payloads import json_codec
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.storage.encryption import EncryptionContext
from gateway.storage.key_file import create_key_file, read_key_file
from gateway.storage.state_tables import STATE_TABLES
from gateway.storage.superseded_batches import list_superseded_batches
from gateway.storage.tables import UTCDateTime
from mappings.failures import Conflict
from tests.gateway.storage.conftest import open_store_at_revision
from tests.state import compare_and_set, execute, fetch

ACME = Tenant("acme", "live")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
AT = bindparam("at", NOW, UTCDateTime)
batches = STATE_TABLES["batch"].table


async def test_object_states_survive_the_move_into_columns(state: State) -> None:
    """Facts of the previous version are loaded and compared as before, also those encrypted."""
    if not state.encryption_key_file.exists():
        create_key_file(state.encryption_key_file)
    keys = read_key_file(state.encryption_key_file)
    assert keys is not None
    old_facts: dict[str, dict[str, Any]] = {
        "alias": {"id": "B-0", "createdAt": "2030", "abandoned": True},
        "recipient": {"deleted": True, "holdup": {"limit": Decimal("5.10"), "active": False}},
        "payout turn": {"holder": "one"},
        "begun": {"at": "legacy", "by": "one"},
        "complete": {"payments": 2, "newest": "2030"},
        "country": {"account_number": True},
        "signed adds": {"a": {"sourceAmount": "1.10"}},
        "batch": {
            "phase": "editing",
            "since": "2030",
            "version": 3,
            "abandoned": ["B-0"],
            "has_memos": False,
            "is_new": True,
            "description": "salaries \0",
            "adds": {"s": {"sourceAmount": "1.10"}},
        },
        "payments": {"entries": [{"id": "P-1", "sourceAmount": "1.10"}]},
    }
    insertion = text(
        "INSERT INTO object_states (merchant, environment, kind, id, facts, updated_at)"
        " VALUES ('acme', 'live', :kind, 'X-1', :facts, :at)"
    )
    async with open_store_at_revision(state, "0022") as store:
        for kind, facts in old_facts.items():
            stored = json_codec.dumps_trusted(facts).decode()
            if kind in ("batch", "payments"):
                context = EncryptionContext("remembered", "acme", "live", f"facts of a {kind}")
                stored = keys.encrypt(stored, context)
            await execute(store, insertion.bindparams(AT, kind=kind, facts=stored))
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        assert {
            kind: await object_states.load(ACME, kind, "X-1") for kind in old_facts
        } == old_facts
        (superseded,) = await list_superseded_batches(store)
        assert (superseded.upstream_id, superseded.since) == ("X-1", NOW)
        changes = {"phase": "draft", "since": None, "is_new": None, "version": 4}
        for is_changed in (False, True):
            with pytest.raises(Conflict) if is_changed else nullcontext():
                await compare_and_set(
                    object_states, ACME, "batch", "X-1", changes, find={"version": 3}
                )
        new_facts = {**old_facts["batch"], **changes}
        assert await object_states.load(ACME, "batch", "X-1") == {
            name: fact for name, fact in new_facts.items() if fact is not None
        }
        ((phase, is_new, sealed),) = await fetch(
            store, select(batches.c.phase, batches.c.is_new, batches.c.sealed)
        )
        personal = keys.decrypt(
            sealed, EncryptionContext("remembered", "acme", "live", "facts of a batch")
        )
        assert (phase, is_new, sorted(json_codec.loads(personal.encode()))) == (
            "draft",
            False,
            ["adds", "description"],
        )
