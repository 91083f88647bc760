"""Renders `mappings/operations.md`: the calls of each operation with an example, and field tables.

The examples run the flows against a simulated service, as `payout-gateway explain` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.docgen.examples import build_request_example
from gateway.docgen.explain import ExplainedCall, explain_request
from gateway.docgen.reference.markdown import format_inline_code, format_markdown_table
from mappings import OPERATIONS, UNLISTED
from mappings.batch_views import BATCH
from mappings.effects import Operation
from mappings.errors import REFUSAL_STATUS
from mappings.fields import FieldTable
from mappings.objects import (
    ADDRESS,
    BANK,
    COMPLIANCE,
    PAYMENT,
    PAYMENT_BATCH,
    RECIPIENT,
    WALLET,
)
from mappings.provenance import TABLES_BY_MODULE, list_documented_current_calls

INTRODUCTION = """# Operations

<!-- Generated from mappings/ by `make docs`. Do not edit. -->

This page shows how the gateway translates each operation of the legacy interface into calls of the
current interface. It uses the neutral words of the documents. To translate a request of your own,
with the words of your service, run `payout-gateway explain`. To see which optional endpoints your
service has, run `payout-gateway doctor --verbose`.

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

FIELD_TABLES: dict[str, FieldTable] = {
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
    lines = [INTRODUCTION.format(codes=codes), *_render_overview()]
    for heading, operations in (
        ("The legacy interface", OPERATIONS),
        ("Used by clients, but not listed in the legacy document", UNLISTED),
    ):
        lines += [f"## {heading}\n"]
        lines += [line for operation in operations for line in _render_operation(operation)]
    return "\n".join([*lines, *_render_field_tables()])


def _render_overview() -> Iterator[str]:
    rows = [
        [
            f"[{format_inline_code(format_operation_title(operation))}](#{_build_anchor(format_operation_title(operation))})",
            operation.section,
            operation.exactness,
            _format_calls(operation),
        ]
        for operation in (*OPERATIONS, *UNLISTED)
    ]
    yield from format_markdown_table(["operation", "section", "exactness", "current calls"], rows)


def format_operation_title(operation: Operation) -> str:
    return f"{operation.method} /v1{re.sub('[<>]', '', operation.path)}"


def _build_anchor(text: str) -> str:
    """Builds the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def _format_calls(operation: Operation) -> str:
    return "<br>".join(
        format_inline_code(call["call"]) for call in list_documented_current_calls(operation)
    )


def _render_operation(operation: Operation) -> Iterator[str]:
    yield f"### {format_operation_title(operation)}\n"
    yield f"`{operation.name}` (legacy interface, section {operation.section}). *{operation.exactness}*: {operation.exactness_reason}."
    if operation.assumption:
        yield f"Assumption: {operation.assumption}."
    yield ""
    yield from format_markdown_table(
        ["call", "condition or purpose"],
        [
            [format_inline_code(call["call"]), call["note"]]
            for call in list_documented_current_calls(operation)
        ],
    )
    yield from _render_example(operation)
    yield from _render_field_table_links(operation)


def _render_example(operation: Operation) -> Iterator[str]:
    # Default settings: the page describes the neutral words, not one service's.
    example = build_request_example(Settings(), operation)
    data = b"" if example.body is None else json.dumps(example.body).encode()
    explanation = explain_request(Settings(), example.method, example.target, data)
    # One field a line: enough to read, and shorter than any nesting.
    fields = ",\n".join(
        f'  "{name}": {json.dumps(value)}' for name, value in (example.body or {}).items()
    )
    body_text = f"\n{{\n{fields}\n}}" if fields else ""
    yield f"```\n{example.method} {example.target}{body_text}\n```\n"
    for number, call in enumerate(explanation.calls, 1):
        yield from _render_call(number, call)
    if explanation.kept:
        yield "Not sent:\n"
        yield from (f"- {format_inline_code(name)}: {reason}" for name, reason in explanation.kept)
        yield ""
    if explanation.remembered:
        yield f"Stored by the gateway: {'; '.join(explanation.remembered)}.\n"
    # The examples must stay valid when the mapping changes.
    if explanation.refusal:
        raise ValueError(
            f"the example of {operation.name} is rejected: {explanation.refusal.build_body()}"
        )


def _render_call(number: int, call: ExplainedCall) -> Iterator[str]:
    note = ", optional endpoint" if call.inferred else ""
    yield f"{number}. `{call.method} {call.target}` (current interface, section {call.section}{note})\n"
    if unchanged := [origin.field for origin in call.fields if origin.rule == "same"]:
        yield f"Same in both interfaces: {', '.join(map(format_inline_code, unchanged))}.\n"
    if changed := [origin for origin in call.fields if origin.rule != "same"]:
        rows = [
            [
                format_inline_code(origin.field),
                format_inline_code(json.dumps(origin.value, default=str)),
                format_inline_code(origin.sent_in),
                origin.rule,
            ]
            for origin in changed
        ]
        yield from format_markdown_table(["field", "value", "sent in", "rule"], rows)


def _render_field_table_links(operation: Operation) -> Iterator[str]:
    # Deletes answer without an object.
    names = [
        name
        for name, table in FIELD_TABLES.items()
        if table in TABLES_BY_MODULE.get(operation.flow.__module__.rpartition(".")[2], ())
    ]
    if names and operation.method != "DELETE":
        links = ", ".join(f"[{name}](#{_build_anchor(name)})" for name in names)
        yield f"Answer fields: {links}.\n"


def _render_field_tables() -> Iterator[str]:
    yield "## Fields\n"
    yield (
        "Every field of the legacy objects, with the current field that it is sent as and the source of "
        "its value in answers. The gateway does not start if a field is missing.\n"
    )
    for name, fields in FIELD_TABLES.items():
        yield f"### {name}\n"
        rows = [
            [format_inline_code(row.legacy_name), format_inline_code(row.current_name), format_inline_code(row.answer_name), row.reason or ("same" if row.legacy_name == row.current_name else "renamed")]
            for row in fields.rows
        ]  # fmt: skip
        yield from format_markdown_table(
            ["legacy field", "current field", "shown from", "rule"], rows
        )
