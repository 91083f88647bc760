"""What each operation becomes: its request played as `explain` plays one, and the field tables."""

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

<!-- `make docs` writes this page, of mappings/. -->

What becomes of each operation of the legacy interface, in the neutral words of the documents. For one
request of your own, in your service's words: `payout-gateway explain`. For what your service was found to
have: `payout-gateway operations`.

*exact*: the current interface has the same. *emulated*: it says the same otherwise. *inferred*: a path is
used that its document does not list. *lossy*: something is lost, and it is said what.

The calls of an operation are all that it may make, in order; those that follow it are the ones that the
request shown here makes, in front of an imagined service that has and takes everything. Checks, errors
and the many odd ways of asking are in `tests/cases/`.

A response with status 200 and `"ok": false` is a definite refusal if each of its errors has one of these
codes; it is then answered as the same code with its own status is:
{codes}. With any other code, with an
error without a code, or with no errors, it proves nothing: a write is in doubt, as after a 5xx, and a read
is answered 500.
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
        ("Used by clients in the field, and not in the legacy document", UNLISTED),
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
    yield from format_markdown_table(["operation", "section", "exactness", "becomes"], rows)


def format_operation_title(operation: Operation) -> str:
    return f"{operation.method} /v1{re.sub('[<>]', '', operation.path)}"


def _anchor(text: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def _calls(operation: Operation) -> str:
    return "<br>".join(format_inline_code(one["call"]) for one in list_current_calls(operation))


def _operation(operation: Operation) -> Iterator[str]:
    yield f"### {format_operation_title(operation)}\n"
    yield f"`{operation.name}`, section {operation.section}. *{operation.exactness}*: {operation.because}."
    if operation.rests_on:
        yield f"Rests on: {operation.rests_on}."
    yield ""
    yield from format_markdown_table(
        ["call", "when, or for what"],
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
        yield f"Remembered here: {'; '.join(told.remembered)}.\n"
    if told.refusal:
        raise ValueError(f"the example of {operation.name} is refused: {told.refusal.body()}")


def play_example(operation: Operation) -> Explained:
    """The operation's own request, played."""
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
    inferred = ", not listed there and presumed" if call.inferred else ""
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
    names = [name for name, one in OBJECTS.items() if one in TABLES_OF.get(_room(operation), ())]
    if names and operation.method != "DELETE":
        linked = ", ".join(f"[{name}](#{_anchor(name)})" for name in names)
        yield f"Fields of its answer: {linked}.\n"


def _room(operation: Operation) -> str:
    return operation.flow.__module__.rpartition(".")[2]


def _objects() -> Iterator[str]:
    yield "## Fields\n"
    yield (
        "Each field of the legacy interface's objects: where it goes, and where an answer has it "
        "from. The program does not start while one is missing.\n"
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
