"""Builds the mutants of a module from its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

MAPPINGS = Path(__file__).parents[2] / "mappings"

TABLES = (
    "objects", "batch_views", "errors", "banking", "recipient_queries", "recipient_bodies",
    "payouts", "payout_changes", "payout_methods", "balances",
    "summaries", "paging", "money", "payloads", "batch_bodies", "payment_recipients", "batch_reads", "batch_lists",
    "batch_changes", "start_checks", "batches", "payments", "recipients", "geography",
    "field_types", "ids", "recipient_reads", "matching", "drafts", "batch_adds", "batch_locks",
    "legacy", "current",
)  # fmt: skip
"""Modules whose tables are broken, row by row."""

FLOWS = (
    "objects", "batch_views", "recipient_queries", "recipient_bodies", "payouts",
    "payout_changes", "payout_methods", "balances", "summaries",
    "paging", "money", "payloads", "batch_bodies", "payment_recipients", "batch_reads", "batch_lists", "batch_changes",
    "start_checks", "batches", "payments", "recipients", "matching", "fields", "recipient_reads",
)  # fmt: skip
"""Modules whose flows are mutated as well: numbers, comparisons, sums and booleans."""

MODULES_WITH_FIELD_NAMES = ("paging", "money", "summaries", "balances", "payloads")
"""Modules whose flows name fields, so that these names are misspelt, too."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MESSAGE_CALLS = {
    "build_invalid_field_problem",
    "Inconclusive",
    "Problem",
    "Unreadable",
    "TypeError",
    "LookupError",
    "InvalidValue",
}
"""Calls whose texts are messages for people."""

_BUILD_FAULTY_TABLE = (
    "__import__('tests.mutations.field_tables', fromlist=['*']).build_faulty_table"
)

Change = Callable[[ast.AST], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``node`` counts nodes as ``ast.walk`` does; ``name`` stays the same when lines move."""

    module: str
    target: str
    description: str
    line: int
    end_line: int
    node: int
    change: Change
    kind: Literal["shape", "table", "flow"]

    @property
    def name(self) -> str:
        return f"{self.module}.{self.target}: {self.description}"

    @property
    def is_flow(self) -> bool:
        return self.kind == "flow"

    @property
    def is_read_at_start(self) -> bool:
        """Whether it concerns shapes, field types, operations, endpoints or the code that builds tables.

        Other objects are derived from them when the gateway starts.
        """
        return self.module == "fields" or (
            not self.is_flow
            and (
                self.kind == "shape"
                or self.module in ("legacy", "current", "field_types")
                or not self.target.isidentifier()
                or self.target in ("OPERATIONS", "UNLISTED")
            )
        )

    def build_tree(self) -> ast.Module:
        tree = ast.parse(_read_source(self.module))
        self.change(list(ast.walk(tree))[self.node])
        return ast.fix_missing_locations(tree)

    def unparse(self) -> str:
        return ast.unparse(self.build_tree())


@cache
def _read_source(module: str) -> str:
    return (MAPPINGS / f"{module}.py").read_text("utf-8")


@cache
def parse_module(module: str) -> ast.Module:
    return ast.parse(_read_source(module))


def list_derived_names(tree: ast.Module, name: str) -> list[str]:
    """The name of a table, and the names of tables of its module that are derived from it, in order."""
    names = [name]
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign | ast.AnnAssign)
            and statement.value
            and _unparse_target(statement) not in names
        ):
            used_names = {
                node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)
            }
            if used_names & set(names):
                names.append(_unparse_target(statement))
    return names


def list_mutants() -> list[Mutant]:
    """All mutants; those with a name that occurred before are numbered."""
    unnumbered = [
        mutant
        for module in dict.fromkeys((*TABLES, *FLOWS))
        for mutant in _list_module_mutations(module)
    ]
    counts: dict[str, int] = {}
    mutants: list[Mutant] = []
    for mutant in unnumbered:
        counts[mutant.name] = count = counts.get(mutant.name, 0) + 1
        description = mutant.description if count == 1 else f"{mutant.description} ({count})"
        mutants.append(replace(mutant, description=description))
    return mutants


def _list_module_mutations(module: str) -> Iterator[Mutant]:
    tree = parse_module(module)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}

    def build_mutant(
        node: ast.AST,
        target: str,
        description: str,
        change: Change,
        kind: Literal["shape", "table", "flow"],
    ) -> Mutant:
        line, end_line = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        return Mutant(module, target, description, line, end_line, numbers[id(node)], change, kind)

    for statement in tree.body:
        if module in TABLES:
            for target, node, description, change in _list_statement_mutations(statement, module):
                kind = "shape" if isinstance(statement, ast.ClassDef) else "table"
                yield build_mutant(node, target, description, change, kind)
        for function in _list_functions(statement) if module in FLOWS else ():
            for node, description, change in _list_flow_mutations(function):
                if module in MODULES_WITH_FIELD_NAMES or not description.endswith(" misspelt"):
                    yield build_mutant(node, function.name, description, change, "flow")


def _list_statement_mutations(
    statement: ast.stmt, module: str
) -> Iterator[tuple[str, ast.AST, str, Change]]:
    """The mutations of a shape or of a table."""
    if isinstance(statement, ast.ClassDef):
        yield from ((statement.name, *names) for names in _list_shape_mutations(statement, module))
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
        target = _unparse_target(statement)
        if _called_name(statement.value) == "FieldTable":
            table = getattr(import_module(f"mappings.{module}"), target)
            mutations = _list_field_table_mutations(statement.value, table)
        else:
            mutations = _list_table_mutations(statement.value)
        yield from ((target, *names) for names in mutations)


def _unparse_target(statement: ast.Assign | ast.AnnAssign) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    return ast.unparse(target)


@cache
def _find_uses(module: str) -> dict[tuple[str, str], set[str]]:
    """Each module's name to the lines, ``module:line``, where this module uses it."""
    tree = parse_module(module)
    imported = {
        alias.asname or alias.name: (str(statement.module).removeprefix("mappings."), alias.name)
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("mappings.")
        for alias in statement.names
    }
    names: dict[tuple[str, str], set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            key = imported.get(node.id, (module, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            key = (node.value.id, node.attr)
        else:
            continue
        names.setdefault(key, set()).add(f"{module}:{node.lineno}")
    return names


@cache
def _list_modules() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in MAPPINGS.glob("*.py")))


def list_using_lines(mutant: Mutant) -> set[str] | None:
    """Lines that use a table, or a table derived from it; None if they are not known."""
    if mutant.is_read_at_start:
        return None
    names = list_derived_names(parse_module(mutant.module), mutant.target)
    return {
        line
        for module in _list_modules()
        for name in names
        for line in _find_uses(module).get((mutant.module, name), ())
    }


Mutation = tuple[ast.AST, str, Change]


# Shapes


def _list_shape_mutations(shape: ast.ClassDef, module: str) -> Iterator[Mutation]:
    if (
        not any(isinstance(statement, ast.AnnAssign) for statement in shape.body)
        or shape.decorator_list
    ):
        return
    rows = [
        index for index, statement in enumerate(shape.body) if isinstance(statement, ast.AnnAssign)
    ]
    for index, next_index in zip(rows, [*rows[1:], rows[0]], strict=True):
        row = shape.body[index]
        assert isinstance(row, ast.AnnAssign)
        name = ast.unparse(row.target)
        if module == "current" and "Annotated" not in ast.unparse(row.annotation):
            continue  # values of the service are passed on; the shape only marks words
        yield shape, f"{name} dropped", lambda node, index=index: _drop_row(node.body, index)
        yield row.target, f"{name} misspelt", _misspell_name
        if shape.name.endswith("Body") and ast.unparse(row.annotation) != ast.unparse(
            shape.body[next_index].annotation  # type: ignore[attr-defined]
        ):
            yield (
                shape,
                f"{name} of its neighbour's type",
                lambda node, a=index, b=next_index: setattr(
                    node.body[a], "annotation", node.body[b].annotation
                ),
            )


def _drop_row(rows: list[ast.stmt], index: int) -> None:
    rows[index] = ast.Pass()


def _misspell_name(node: ast.AST) -> None:
    assert isinstance(node, ast.Name)
    node.id = misspell(node.id)


def misspell(word: str) -> str:
    """Exchanges two neighbouring letters, or appends a letter."""
    for index in range(len(word) // 2, len(word) - 1):
        if word[index] != word[index + 1]:
            return f"{word[:index]}{word[index + 1]}{word[index]}{word[index + 2 :]}"
    return f"{word}x"


# Tables


def _list_table_mutations(value: ast.expr) -> Iterator[Mutation]:
    skipped_ids: set[int] = set()
    for node in ast.walk(value):
        if id(node) in skipped_ids:
            continue
        if isinstance(node, ast.Lambda | ast.JoinedStr | ast.Subscript | ast.comprehension):
            # Code of flows, messages for people, types. The table of a comprehension is what it iterates.
            skipped_ids |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.Dict):
            yield from _list_dict_mutations(node)
        elif isinstance(node, ast.Set | ast.List | ast.Tuple):
            yield from _list_rows_mutations(node)
        elif isinstance(node, ast.Call):
            yield from _list_arguments_mutations(node)
            if _called_name(node) in _MESSAGE_CALLS:
                skipped_ids |= {id(inner) for inner in node.args[1:2]}
    if isinstance(value, ast.Constant):
        yield from _list_constant_mutations(value, "it")


def _list_dict_mutations(table: ast.Dict) -> Iterator[Mutation]:
    count = len(table.keys)
    for index, (key, value) in enumerate(zip(table.keys, table.values, strict=True)):
        if key is None:
            continue
        row = ast.unparse(key)[:40]

        def drop(node: ast.AST, index: int = index) -> None:
            del node.keys[index], node.values[index]  # type: ignore[attr-defined]

        yield table, f"{row} dropped", drop
        yield from _list_constant_mutations(key, f"{row}, its key,")
        yield from _list_constant_mutations(value, f"{row}, its value,")
        next_index = (index + 1) % count
        if table.keys[next_index] is None or next_index == index:
            continue
        if ast.unparse(value) == ast.unparse(table.values[next_index]):
            continue

        def take_next_value(
            node: ast.AST, index: int = index, next_index: int = next_index
        ) -> None:
            node.values[index] = node.values[next_index]  # type: ignore[attr-defined]

        def swap(node: ast.AST, index: int = index, next_index: int = next_index) -> None:
            values = node.values  # type: ignore[attr-defined]
            values[index], values[next_index] = values[next_index], values[index]

        yield table, f"{row} off by one", take_next_value
        yield table, f"{row} swapped", swap


def _list_rows_mutations(table: ast.Set | ast.List | ast.Tuple) -> Iterator[Mutation]:
    for index, element in enumerate(table.elts):
        row = ast.unparse(element)[:60]

        def drop(node: ast.AST, index: int = index) -> None:
            del node.elts[index]  # type: ignore[attr-defined]

        if len(table.elts) > 1:
            yield table, f"{row} dropped", drop
        if isinstance(element, ast.Constant):
            yield from _list_constant_mutations(element, row)


def _list_constant_mutations(node: ast.expr, row: str) -> Iterator[Mutation]:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, str) and _WORD.fullmatch(node.value):
        yield node, f"{row} misspelt", _misspell
    elif isinstance(node.value, bool):
        yield node, f"{row} turned round", _negate
    elif isinstance(node.value, int):
        yield node, f"{row} off by one", _add_one


def _misspell(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    node.value = misspell(str(node.value))


def _negate(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    node.value = not node.value


def _add_one(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    node.value = node.value + 1


_MUTATED_ARGUMENT_COUNTS = {"Operation": 3}
"""Only method, path and flow of an operation are used at run time; the rest is documentation."""


def _list_arguments_mutations(call: ast.Call) -> Iterator[Mutation]:
    name = _called_name(call)
    max_arguments = _MUTATED_ARGUMENT_COUNTS.get(name, len(call.args))
    if name in _MESSAGE_CALLS:
        max_arguments = 1
    if name in ("DigitRule", "Problem", "Operation", "Endpoint", "Field", "Context", "Decimal"):
        for index, argument in enumerate(call.args[:max_arguments]):
            if name == "DigitRule" and index == 2:
                continue  # the name in a message
            row = f"{name} {' '.join(ast.unparse(arg) for arg in call.args[:2])[:40]}"
            yield from _list_constant_mutations(argument, f"{row}, {index + 1},")
    for keyword in call.keywords:
        if name == "Operation" and keyword.arg in (
            "body_shape",
            "query_shape",
            "is_keyless",
            "can_write",
        ):
            row = " ".join(ast.unparse(arg) for arg in call.args[:2])

            def drop_keyword(node: ast.AST, arg: str = keyword.arg) -> None:
                node.keywords = [k for k in node.keywords if k.arg != arg]  # type: ignore[attr-defined]

            yield call, f"{row} without {keyword.arg}", drop_keyword
        if name == "Endpoint" and keyword.arg in ("body_shape", "response_shape", "query_shape"):
            row = " ".join(ast.unparse(arg) for arg in call.args[:2])

            def drop_shape(node: ast.AST, arg: str = keyword.arg) -> None:
                node.keywords = [k for k in node.keywords if k.arg != arg]  # type: ignore[attr-defined]

            yield call, f"{row} without {keyword.arg}", drop_shape


def _called_name(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


# Field tables check themselves when they are built, which finds a dropped or misspelt row at once. So a row
# is also set apart, not sent, or shown from its neighbour.


def _list_field_table_mutations(call: ast.expr, table: Any) -> Iterator[Mutation]:
    for index, row in enumerate(table.rows):
        name, target, is_sent = row.legacy_name, row.current_name, not row.reason
        yield call, f"{name} misspelt", _build_fault(name, legacy_name=misspell(name))
        if row.answer_name is None:
            if target:
                yield call, f"{name} not named in errors", _build_fault(name, current_name=None)
            continue
        apart = {"current_name": None, "answer_name": None, "nested_table": None}
        yield call, f"{name} set apart", _build_fault(name, reason="a mutant", **apart)
        other_targets = (
            other.current_name
            for other in (*table.rows[index + 1 :], *table.rows)
            if other.answer_name and other.current_name != target and not other.nested_table
        )
        other_target = None if row.nested_table else next(other_targets, None)
        if other_target:
            yield call, f"{name} shown off by one", _build_fault(name, answer_name=other_target)
        if other_target and is_sent:
            fault = _build_fault(name, current_name=other_target, answer_name=target)
            yield call, f"{name} sent off by one", fault
        if is_sent:
            yield call, f"{name} not sent", _build_fault(name, reason="a mutant")


def _build_fault(row: str, **changes: str | None) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        node.func = ast.parse(_BUILD_FAULTY_TABLE, mode="eval").body
        for name, value in (("row", row), ("changes", changes)):
            node.keywords.append(ast.keyword(name, ast.parse(repr(value), mode="eval").body))

    return change


# Flows


def _list_functions(statement: ast.stmt) -> Iterator[ast.FunctionDef]:
    """The outermost functions, and methods of classes."""
    if isinstance(statement, ast.FunctionDef):
        yield statement
    elif isinstance(statement, ast.ClassDef):
        yield from (inner for inner in statement.body if isinstance(inner, ast.FunctionDef))


_OPERATORS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_SUMS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def _list_flow_mutations(function: ast.FunctionDef) -> Iterator[Mutation]:  # noqa: C901 - one branch for each kind of node
    skipped_ids: set[int] = set()
    for node in ast.walk(function):
        if id(node) in skipped_ids:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped_ids.add(id(node.value))  # a docstring
        elif isinstance(node, ast.JoinedStr | ast.arguments):
            skipped_ids |= {
                id(inner) for inner in ast.walk(node) if isinstance(inner, ast.Constant)
            }
        elif isinstance(node, ast.AnnAssign):
            skipped_ids |= {id(inner) for inner in ast.walk(node.annotation)}
        elif isinstance(node, ast.Raise):
            skipped_ids |= {
                id(inner) for inner in ast.walk(node) if isinstance(inner, ast.Constant)
            }
        elif isinstance(node, ast.Call) and _called_name(node) in (*_MESSAGE_CALLS, "cast"):
            skipped_ids |= {id(inner) for inner in node.args if isinstance(inner, ast.Constant)}
        elif isinstance(node, ast.Constant):
            yield from _list_constant_mutations(node, f"{ast.unparse(node)[:40]}")
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
            yield node, f"{ast.unparse(node)[:60]} off by one", _shift_comparison
        elif isinstance(node, ast.BinOp) and type(node.op) in _SUMS and not _is_text(node):
            yield node, f"{ast.unparse(node)[:60]} turned round", _exchange_operator


def _is_text(node: ast.expr) -> bool:
    """Texts and lists are added as well, and cannot be subtracted."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    is_word = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_word or isinstance(node, ast.List | ast.JoinedStr | ast.Tuple)


def _shift_comparison(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = _OPERATORS[type(node.ops[0])]()


def _exchange_operator(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = _SUMS[type(node.op)]()
