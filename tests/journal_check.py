"""Compares the gateway's journal with what its service executed."""

from __future__ import annotations

from collections import Counter

from gateway.config.settings import Settings
from tests.recording_service import RecordingService, count_targets
from tests.state import StoredWrite, load_writes

UNVERIFIABLE_SUFFIXES = ("/generate-quote",)
"""Writes that cannot be read back, and may be repeated: quotes."""


async def check_journal(settings: Settings, recorder: RecordingService) -> Counter[str]:
    """Fails if the journal contradicts the service; returns how many writes are in each state.

    Every write that the service executed is marked as executed or in doubt, no other write is marked as
    executed, and no write was sent that is not in the journal.
    """
    stored = await load_writes(settings)
    recorded_targets = {(write.method, write.path) for write in stored}
    sent_targets = {
        (request.method, request.path.removeprefix("/v1")) for request in recorder.list_writes()
    }
    assert sent_targets <= recorded_targets, sent_targets - recorded_targets
    executed_counts = count_targets(recorder.list_executed_writes())
    known_counts = Counter((write.method, write.path) for write in stored if write.is_executed)
    open_ = Counter((write.method, write.path) for write in stored if write.is_open)
    for target, times in executed_counts.items():
        if not target[1].endswith(UNVERIFIABLE_SUFFIXES):
            details = (target, times, known_counts[target], open_[target])
            assert times <= known_counts[target] + open_[target], (
                f"executed, and not marked so: {details}"
            )
    for target, times in known_counts.items():
        assert times <= executed_counts[target], f"marked as executed, and was not: {target}"
    _check_created_once(stored, recorder)
    for write in stored:
        if write.is_open:
            assert write.has_open_operation, write
        if write.has_closed_operation:
            assert not write.is_open, write
    return Counter(write.state for write in stored)


def _check_created_once(writes: list[StoredWrite], recorder: RecordingService) -> None:
    """Every created object belongs to one write, or to one in doubt."""
    claimed_counts = Counter(line.object_id for line in writes if line.object_id)
    assert not [id_ for id_, times in claimed_counts.items() if times > 1], "claimed by two"
    created_requests = {
        request.created_id: request
        for request in recorder.list_executed_writes()
        if request.created_id
    }
    assert claimed_counts.keys() <= created_requests.keys(), "claimed, and not made"
    open_ = {(line.method, line.path) for line in writes if line.is_open}
    for id_, request in created_requests.items():
        target = (request.method, request.path.removeprefix("/v1"))
        assert id_ in claimed_counts or target in open_, f"made, and nobody knows: {target} {id_}"
