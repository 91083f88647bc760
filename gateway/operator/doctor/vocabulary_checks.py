"""Compares ``[vocabulary.current]`` with what the service answers, with reads only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from gateway.config.settings import CurrentWords
from gateway.operator.doctor.findings import Finding
from gateway.operator.doctor.remote_checks import ServiceProbe, is_accepted, parse_body
from gateway.upstream.http_connection import Reply
from gateway.upstream.optional_endpoints import MISSING_STATUSES

BALANCE_CHECK, WALLET_CHECK = "balance_path", "wallet word"
SUMMARY_CHECK, CURRENCY_CHECK = "summary_path", "currency word"
NEEDS_BATCH = "skipped: the service lists no batch to try it with"
NO_ACTION = "no action needed; `doctor` checks it once there is one"
BATCH_LIST_TARGET = "/v1/batches?page=1&pageSize=1"


async def check_vocabulary(
    probe: ServiceProbe, words: CurrentWords, rehearsal: Mapping[str, Any] | None
) -> AsyncIterator[Finding]:
    """Checks the two configurable paths, and the words that answers to reads contain.

    ``rehearsal``: what is saved of the last one, which shows the words that writes take.
    """
    if probe.accepted_reply is None:
        reason, advice = f"skipped: {probe.failure_reason}", probe.advice_if_skipped
        yield Finding(probe.name, "vocabulary", "skipped", reason, advice)
        return
    reply = await probe.try_signed_read(words.balance_path)
    yield _check_path(probe, BALANCE_CHECK, words.balance_path, reply)
    if reply is not None and is_accepted(reply):
        yield _check_wallet_word(probe.name, words.wallet, parse_body(reply).get("balances"))
    batches = await probe.try_signed_read(BATCH_LIST_TARGET)
    batch = _find_first_batch(batches) if batches is not None and is_accepted(batches) else None
    if batch is None:
        reason = f"skipped: {probe.unanswered_read}" if probe.unanswered_read else NEEDS_BATCH
        for check_name in (SUMMARY_CHECK, CURRENCY_CHECK):
            yield Finding(probe.name, check_name, "skipped", reason, NO_ACTION)
        return
    target = words.summary_path.replace("{id}", batch["id"])
    yield _check_path(probe, SUMMARY_CHECK, words.summary_path, await probe.try_signed_read(target))
    yield _check_currency_word(probe.name, words.batch_currency, batch, rehearsal or {})


def _check_path(probe: ServiceProbe, check_name: str, path: str, reply: Reply | None) -> Finding:
    name, key = probe.name, f"vocabulary.current.{check_name}"
    if reply is None:
        advice = "run `doctor` again when the service answers"
        reason = f"skipped: {probe.unanswered_read}"
        return Finding(name, check_name, "skipped", reason, advice)
    if is_accepted(reply):
        return Finding(name, check_name, "ok", f"{path} answers")
    if reply.status in MISSING_STATUSES:
        description = f"the service has no {path} (status {reply.status})"
        advice = f"set {key} to the path that the service documents"
        return Finding(name, check_name, "error", description, advice)
    description = f"{path} is answered with status {reply.status}"
    advice = f"check {key}, and that the access key may read it"
    state = "error" if reply.status in (401, 403) else "warning"
    return Finding(name, check_name, state, description, advice)  # type: ignore[arg-type]


def _check_wallet_word(name: str, word: str, balances: Any) -> Finding:
    """Looks for the account that is no currency: the document calls it by the wallet word."""
    names = set(_iter_balance_names(balances))
    if word in names:
        return Finding(name, WALLET_CHECK, "ok", f"the service calls it {word}, as configured")
    if other_names := sorted(name for name in names if not re.fullmatch("[A-Z]{3}", name)):
        description = f"the service has a balance {other_names[0]} and none that is called {word}"
        advice = f'set vocabulary.current.wallet to "{other_names[0]}" if that is the wallet'
        return Finding(name, WALLET_CHECK, "error", description, advice)
    description = "skipped: the merchant has no balance of a wallet"
    return Finding(name, WALLET_CHECK, "skipped", description, NO_ACTION)


def _iter_balance_names(balances: Any) -> Iterator[str]:
    if isinstance(balances, Mapping):
        yield from map(str, balances)
    # As a list, the types of the entries are the only names; those of service accounts repeat.
    elif isinstance(balances, list):
        types = [str(entry.get("type")) for entry in balances if isinstance(entry, Mapping)]
        yield from (name for name in types if types.count(name) == 1 and len(types) > 1)


def _find_first_batch(reply: Reply) -> Mapping[str, Any] | None:
    batches = parse_body(reply).get("batches")
    first = batches[0] if isinstance(batches, list) and batches else None
    is_batch = isinstance(first, Mapping) and re.fullmatch(r"[\w-]+", str(first.get("id")))
    return first if is_batch else None


def _check_currency_word(
    name: str, word: str, batch: Mapping[str, Any], rehearsal: Mapping[str, Any]
) -> Finding:
    """Compares the word of creates with the word of reads.

    A service may use different words. Only a create shows that, and a wrong word is one that it
    refuses or ignores, which pays in another currency: an error until a rehearsal with it has created
    a batch.
    """
    if word in batch:
        return Finding(name, CURRENCY_CHECK, "ok", f"batches have the field {word}, as configured")
    other = next((key for key in batch if key.lower().endswith("currency")), None)
    if other is None:
        description = "skipped: the service's batches show no currency"
        return Finding(name, CURRENCY_CHECK, "skipped", description, "see the service's document")
    description = f"the service's batches have the field {other}, and not {word}"
    rehearsed_word = rehearsal.get("batch_currency")
    if rehearsal.get("is_ok") and rehearsed_word == word:
        return Finding(
            name, CURRENCY_CHECK, "ok", f"{description}, which the rehearsal's creates used"
        )
    if rehearsed_word not in (word, None):
        description += f"; the last rehearsal used {rehearsed_word}"
    advice = (
        f'set vocabulary.current.batch_currency to "{other}"; if the service\'s document says {word} '
        "for creates, `payout-gateway rehearse` in the sandbox proves it"
    )
    return Finding(name, CURRENCY_CHECK, "error", description, advice)
