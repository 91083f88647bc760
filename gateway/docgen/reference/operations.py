"""Renders `mappings/operations.md`: the calls of each operation with an example, and field tables.

The examples run the flows against a simulated service, as `payout-gateway explain` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.docgen.explain import Explained, Made, explain_request
from gateway.docgen.openapi.examples import IDS
from gateway.docgen.reference.markdown import format_inline_code, format_markdown_table
from gateway.docgen.reference.requests import QUERIES, REQUESTS
from mappings import OPERATIONS, UNLISTED
from mappings.batch_views import BATCH
from mappings.errors import REFUSAL_STATUS
from mappings.fields import Fields
from mappings.grammar import Operation
from mappings.objects import (
    ADDRESS,
    BANK,
    COMPLIANCE,
    PAYMENT,
    PAYMENT_BATCH,
    RECIPIENT,
    WALLET,
)
from mappings.provenance import TABLES_OF, list_current_calls

ABOUT = """# Operations

<!-- Generated from mappings/ by `make docs`. Do not edit. -->

This page shows how the gateway translates each operation of the legacy interface into calls of the
current interface. It uses the neutral words of the documents. To translate a request of your own,
with the words of your service, run `payout-gateway explain`. To see which optional endpoints your
service has, run `payout-gateway operations`.

Each operation has one of these levels of exactness:

- *exact*: the current interface has the same operation.
- *emulated*: other calls of the current interface have the same effect.
- *inferred*: needs an endpoint that the document of the current interface does not list.
- *lossy*: part of the legacy behavior is lost; the description says which part.

The first table of an operation lists all calls that it can make, in order. The example below it
shows the calls for one request, made to a simulated service in which every object exists and every
write succeeds. Validation, errors and special cases are in `tests/cases/`.

A response with status 200 and `"ok": false` is a definite refusal if each of its errors has one of these
codes; it is answered as the same code with its own status is: {codes}. With any other code, with an error
without a code, or without errors, it proves nothing: a write is in doubt, as after a 5xx, and a read is
answered with 500.
"""

OBJECTS: dict[str, Fields] = {
    "Recipient": RECIPIENT,
    "Address": ADDRESS,
    "Compliance": COMPLIANCE,
    "Bank account": BANK,
    "Wallet": WALLET,
    "Batch": BATCH,
    "Payment": PAYMENT,
    "Batch of a payment": PAYMENT_BATCH,
}


def render_operations_page() -> str:
    codes = ", ".join(map(format_inline_code, sorted(REFUSAL_STATUS)))
    lines = [ABOUT.format(codes=codes), *_overview()]
    for heading, those in (
        ("The legacy interface", OPERATIONS),
        ("Used by clients, but not listed in the legacy document", UNLISTED),
    ):
        lines += [f"## {heading}\n"]
        lines += [line for one in those for line in _operation(one)]
    return "\n".join([*lines, *_objects()])


def _overview() -> Iterator[str]:
    rows = [
        [
            f"[{format_inline_code(format_operation_title(one))}](#{_anchor(format_operation_title(one))})",
            one.section,
            one.exactness,
            _calls(one),
        ]
        for one in (*OPERATIONS, *UNLISTED)
    ]
    yield from format_markdown_table(["operation", "section", "exactness", "current calls"], rows)


def format_operation_title(operation: Operation) -> str:
    return f"{operation.method} /v1{re.sub('[<>]', '', operation.path)}"


def _anchor(text: str) -> str:
    """Builds the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def _calls(operation: Operation) -> str:
    return "<br>".join(format_inline_code(one["call"]) for one in list_current_calls(operation))


def _operation(operation: Operation) -> Iterator[str]:
    yield f"### {format_operation_title(operation)}\n"
    yield f"`{operation.name}`, section {operation.section}. *{operation.exactness}*: {operation.because}."
    if operation.rests_on:
        yield f"Assumption: {operation.rests_on}."
    yield ""
    yield from format_markdown_table(
        ["call", "condition or purpose"],
        [[format_inline_code(one["call"]), one["note"]] for one in list_current_calls(operation)],
    )
    yield from _played(operation)
    yield from _answered(operation)


def _played(operation: Operation) -> Iterator[str]:
    told = play_example(operation)
    body = REQUESTS.get(operation.name)
    sent = f"\n{json.dumps(body, indent=1)}" if body else ""
    yield f"```\n{operation.method} {build_example_target(operation)}{sent}\n```\n"
    for number, call in enumerate(told.calls, 1):
        yield from _made(number, call)
    if told.kept:
        yield "Not sent:\n"
        yield from (f"- {format_inline_code(name)}: {why}" for name, why in told.kept)
        yield ""
    if told.remembered:
        yield f"Stored by the gateway: {'; '.join(told.remembered)}.\n"
    # The examples must stay valid when the mapping changes.
    if told.refusal:
        raise ValueError(f"the example of {operation.name} is rejected: {told.refusal.body()}")


def play_example(operation: Operation) -> Explained:
    """Runs the example request of an operation against the simulated service."""
    body = REQUESTS.get(operation.name)
    data = b"" if body is None else json.dumps(body).encode()
    return explain_request(Settings(), operation.method, build_example_target(operation), data)


def build_example_target(operation: Operation) -> str:
    path = re.sub("<(.*?)>", r"\1", operation.path)
    for room, id_ in IDS.items():
        path = re.sub(rf"(/{room})/\{{\w+\}}", rf"\1/{id_}", path)
    query = QUERIES.get(operation.name, "")
    return f"/v1{path}" + (f"?{query}" if query else "")


def _made(number: int, call: Made) -> Iterator[str]:
    inferred = ", optional endpoint" if call.inferred else ""
    yield f"{number}. `{call.method} {call.target}` (current section {call.section}{inferred})\n"
    if call.fields:
        rows = [
            [
                format_inline_code(one.field),
                format_inline_code(json.dumps(one.value, default=str)),
                format_inline_code(one.sent_in),
                one.rule,
            ]
            for one in call.fields
        ]
        yield from format_markdown_table(["field", "value", "sent in", "rule"], rows)


def _answered(operation: Operation) -> Iterator[str]:
    # Deletes answer without an object.
    names = [name for name, one in OBJECTS.items() if one in TABLES_OF.get(_room(operation), ())]
    if names and operation.method != "DELETE":
        linked = ", ".join(f"[{name}](#{_anchor(name)})" for name in names)
        yield f"Answer fields: {linked}.\n"


def _room(operation: Operation) -> str:
    return operation.flow.__module__.rpartition(".")[2]


def _objects() -> Iterator[str]:
    yield "## Fields\n"
    yield (
        "Every field of the legacy objects, with the current field that it is sent as and the source of "
        "its value in answers. The gateway does not start if a field is missing.\n"
    )
    for name, fields in OBJECTS.items():
        yield f"### {name}\n"
        rows = [
            [format_inline_code(row.legacy), format_inline_code(row.current), format_inline_code(row.shown), row.why or _rule(row.legacy, row.current)]
            for row in fields.rows
        ]  # fmt: skip
        yield from format_markdown_table(
            ["legacy field", "current field", "shown from", "rule"], rows
        )


def _rule(legacy: str, current: str | None) -> str:
    return "same" if legacy == current else "renamed"
