"""Builds the mutants of a module from its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

MAPPINGS = Path(__file__).parents[2] / "mappings"

TABLES = (
    "objects", "batch_views", "batch_answers", "errors", "banking", "recipient_queries", "recipient_bodies",
    "payouts", "payout_changes", "payout_methods", "government_ids", "balances", "funds",
    "summaries", "paging", "money", "payloads", "batch_bodies", "payment_bodies", "batch_reads", "batch_lists",
    "batch_changes", "start_checks", "batches", "payments", "newest_payments", "recipients", "recipient_payments", "geography",
    "field_types", "ids", "recipient_reads", "matching", "drafts", "batch_locks", "payment_adds",
    "legacy", "current",
)  # fmt: skip
"""Modules whose tables are broken, row by row."""

FLOWS = (
    "objects", "batch_views", "batch_answers", "recipient_queries", "recipient_bodies", "payouts",
    "payout_changes", "payout_methods", "government_ids", "balances", "funds", "summaries",
    "paging", "money", "payloads", "batch_bodies", "payment_bodies", "batch_reads", "batch_lists", "batch_changes",
    "start_checks", "batches", "payments", "newest_payments", "recipients", "recipient_payments", "matching", "fields", "recipient_reads",
)  # fmt: skip
"""Modules whose flows are broken as well: their numbers, comparisons, sums, and what is true."""

WORDS = ("paging", "money", "funds", "summaries", "balances", "payloads")
"""Of these the fields that their flows name, too: amounts and pages are what they are made of."""

_FIELD_CALLS = {"keep_names", "rename_field", "nest_table", "mark_read_only", "set_in_code"}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SAYING = {
    "build_invalid_field_problem",
    "Inconclusive",
    "Problem",
    "Unreadable",
    "TypeError",
    "LookupError",
    "build_invalid_error",
}
"""Calls whose texts are messages for people."""

_ROW = "__import__('mappings.fields').fields"

Change = Callable[[ast.AST], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``node`` counts nodes as ``ast.walk`` does; ``name`` stays the same when lines move."""

    module: str
    where: str
    what: str
    line: int
    end: int
    node: int
    change: Change
    kind: Literal["shape", "table", "flow"]

    @property
    def name(self) -> str:
        return f"{self.module}.{self.where}: {self.what}"

    @property
    def is_flow(self) -> bool:
        return self.kind == "flow"

    @property
    def is_read_at_start(self) -> bool:
        """Shapes, kinds of value, operations and endpoints: other things are made of them.

        And what makes tables of them.
        """
        return self.module == "fields" or (
            not self.is_flow
            and (
                self.kind == "shape"
                or self.module in ("legacy", "current", "field_types")
                or not self.where.isidentifier()
                or self.where in ("OPERATIONS", "UNLISTED")
            )
        )

    def tree(self) -> ast.Module:
        tree = ast.parse(_text(self.module))
        self.change(list(ast.walk(tree))[self.node])
        return ast.fix_missing_locations(tree)

    def source(self) -> str:
        return ast.unparse(self.tree())


@cache
def _text(module: str) -> str:
    return (MAPPINGS / f"{module}.py").read_text("utf-8")


@cache
def parse_module(module: str) -> ast.Module:
    return ast.parse(_text(module))


def list_derived_names(tree: ast.Module, first: str) -> list[str]:
    """A table, and those of its module that are made of it, in their order."""
    found = [first]
    for one in tree.body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and one.value and _named(one) not in found:
            used = {part.id for part in ast.walk(one.value) if isinstance(part, ast.Name)}
            if used & set(found):
                found.append(_named(one))
    return found


def list_mutants() -> list[Mutant]:
    """Every one there is; of two with one name the later ones are numbered."""
    names = [mutant for module in dict.fromkeys((*TABLES, *FLOWS)) for mutant in _of_module(module)]
    seen: dict[str, int] = {}
    named: list[Mutant] = []
    for mutant in names:
        seen[mutant.name] = again = seen.get(mutant.name, 0) + 1
        what = mutant.what if again == 1 else f"{mutant.what} ({again})"
        named.append(replace(mutant, what=what))
    return named


def _of_module(module: str) -> Iterator[Mutant]:
    tree = parse_module(module)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}

    def mutant(
        node: ast.AST,
        where: str,
        what: str,
        change: Change,
        kind: Literal["shape", "table", "flow"],
    ) -> Mutant:
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        return Mutant(module, where, what, line, end, numbers[id(node)], change, kind)

    for top in tree.body:
        if module in TABLES:
            for where, node, what, change in _of_data(top, module):
                kind = "shape" if isinstance(top, ast.ClassDef) else "table"
                yield mutant(node, where, what, change, kind)
        for function in _functions(top) if module in FLOWS else ():
            for node, what, change in _of_flow(function):
                if module in WORDS or not what.endswith(" misspelt"):
                    yield mutant(node, function.name, what, change, "flow")


def _of_data(top: ast.stmt, module: str) -> Iterator[tuple[str, ast.AST, str, Change]]:
    """Of a shape, or of a table."""
    if isinstance(top, ast.ClassDef):
        yield from ((top.name, *names) for names in _of_shape(top, module))
    elif isinstance(top, ast.Assign | ast.AnnAssign) and top.value:
        yield from ((_named(top), *names) for names in _of_table(top.value))


def _named(statement: ast.Assign | ast.AnnAssign) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    return ast.unparse(target)


@cache
def _uses(module: str) -> dict[tuple[str, str], set[str]]:
    """Each module's name to the lines, ``module:line``, where this module uses it."""
    tree = parse_module(module)
    imported = {
        alias.asname or alias.name: (str(one.module).removeprefix("mappings."), alias.name)
        for one in tree.body
        if isinstance(one, ast.ImportFrom) and str(one.module).startswith("mappings.")
        for alias in one.names
    }
    names: dict[tuple[str, str], set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used = imported.get(node.id, (module, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = (node.value.id, node.attr)
        else:
            continue
        names.setdefault(used, set()).add(f"{module}:{node.lineno}")
    return names


@cache
def _modules() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in MAPPINGS.glob("*.py")))


def list_using_lines(mutant: Mutant) -> set[str] | None:
    """Lines that use a table, or one made of it; None where that cannot be told."""
    if mutant.is_read_at_start:
        return None
    names = list_derived_names(parse_module(mutant.module), mutant.where)
    return {
        line
        for module in _modules()
        for name in names
        for line in _uses(module).get((mutant.module, name), ())
    }


Found = tuple[ast.AST, str, Change]


# Shapes


def _of_shape(shape: ast.ClassDef, module: str) -> Iterator[Found]:
    if not any(isinstance(one, ast.AnnAssign) for one in shape.body) or shape.decorator_list:
        return
    rows = [place for place, one in enumerate(shape.body) if isinstance(one, ast.AnnAssign)]
    for place, then in zip(rows, [*rows[1:], rows[0]], strict=True):
        row = shape.body[place]
        assert isinstance(row, ast.AnnAssign)
        name = ast.unparse(row.target)
        if module == "current" and "Annotated" not in ast.unparse(row.annotation):
            continue  # what the service gives passes as it is: the shape says where words stand
        yield shape, f"{name} dropped", lambda node, place=place: _drop(node.body, place)
        yield row.target, f"{name} misspelt", _misspell_name
        if shape.name.endswith("Body") and ast.unparse(row.annotation) != ast.unparse(
            shape.body[then].annotation  # type: ignore[attr-defined]
        ):
            yield (
                shape,
                f"{name} of its neighbour's type",
                lambda node, a=place, b=then: setattr(
                    node.body[a], "annotation", node.body[b].annotation
                ),
            )


def _drop(rows: list[ast.stmt], place: int) -> None:
    rows[place] = ast.Pass()


def _misspell_name(node: ast.AST) -> None:
    assert isinstance(node, ast.Name)
    node.id = misspelt(node.id)


def misspelt(word: str) -> str:
    """Two neighbouring letters exchanged, or one letter more."""
    for place in range(len(word) // 2, len(word) - 1):
        if word[place] != word[place + 1]:
            return f"{word[:place]}{word[place + 1]}{word[place]}{word[place + 2 :]}"
    return f"{word}x"


# Tables


def _of_table(value: ast.expr) -> Iterator[Found]:
    if _called(value) == "FieldTable":
        yield from _of_fields(value)
        return
    skipped: set[int] = set()
    for node in ast.walk(value):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Lambda | ast.JoinedStr | ast.Subscript | ast.comprehension):
            # Flows' own, texts for people, types: of a comprehension the table is what it goes over.
            skipped |= {id(one) for one in ast.walk(node)}
        elif isinstance(node, ast.Dict):
            yield from _of_dict(node)
        elif isinstance(node, ast.Set | ast.List | ast.Tuple):
            yield from _of_rows(node)
        elif isinstance(node, ast.Call):
            yield from _of_arguments(node)
            if _called(node) in _SAYING:
                skipped |= {id(one) for one in node.args[1:2]}
    if isinstance(value, ast.Constant):
        yield from _of_constant(value, "it")


def _of_dict(table: ast.Dict) -> Iterator[Found]:
    count = len(table.keys)
    for place, (key, value) in enumerate(zip(table.keys, table.values, strict=True)):
        if key is None:
            continue
        row = ast.unparse(key)[:40]

        def dropped(node: ast.AST, place: int = place) -> None:
            del node.keys[place], node.values[place]  # type: ignore[attr-defined]

        yield table, f"{row} dropped", dropped
        yield from _of_constant(key, f"{row}, its key,")
        yield from _of_constant(value, f"{row}, its value,")
        then = (place + 1) % count
        if table.keys[then] is None or then == place:
            continue
        if ast.unparse(value) == ast.unparse(table.values[then]):
            continue

        def off(node: ast.AST, place: int = place, then: int = then) -> None:
            node.values[place] = node.values[then]  # type: ignore[attr-defined]

        def swapped(node: ast.AST, place: int = place, then: int = then) -> None:
            those = node.values  # type: ignore[attr-defined]
            those[place], those[then] = those[then], those[place]

        yield table, f"{row} off by one", off
        yield table, f"{row} swapped", swapped


def _of_rows(table: ast.Set | ast.List | ast.Tuple) -> Iterator[Found]:
    for place, one in enumerate(table.elts):
        row = ast.unparse(one)[:60]

        def dropped(node: ast.AST, place: int = place) -> None:
            del node.elts[place]  # type: ignore[attr-defined]

        if len(table.elts) > 1:
            yield table, f"{row} dropped", dropped
        if isinstance(one, ast.Constant):
            yield from _of_constant(one, row)


def _of_constant(node: ast.expr, row: str) -> Iterator[Found]:
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
    node.value = misspelt(str(node.value))


def _negate(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    node.value = not node.value


def _add_one(node: ast.AST) -> None:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    node.value = node.value + 1


_TOLD_ONLY = {"Operation": 3}
"""Of an operation only method, path and flow are used while it runs; the rest is documentation."""


def _of_arguments(call: ast.Call) -> Iterator[Found]:
    name = _called(call)
    most = _TOLD_ONLY.get(name, len(call.args))
    if name in _SAYING:
        most = 1
    if name in ("DigitRule", "Problem", "Operation", "Endpoint", "Field", "Context", "Decimal"):
        for place, one in enumerate(call.args[:most]):
            if name == "DigitRule" and place == 2:
                continue  # what a message calls them
            row = f"{name} {' '.join(ast.unparse(arg) for arg in call.args[:2])[:40]}"
            yield from _of_constant(one, f"{row}, {place + 1},")
    for keyword in call.keywords:
        if name == "Operation" and keyword.arg in (
            "body_shape",
            "query_shape",
            "is_keyless",
            "can_write",
        ):
            row = " ".join(ast.unparse(arg) for arg in call.args[:2])

            def dropped(node: ast.AST, arg: str = keyword.arg) -> None:
                node.keywords = [k for k in node.keywords if k.arg != arg]  # type: ignore[attr-defined]

            yield call, f"{row} without {keyword.arg}", dropped
        if name == "Endpoint" and keyword.arg in ("body_shape", "response_shape", "query_shape"):
            row = " ".join(ast.unparse(arg) for arg in call.args[:2])

            def plain(node: ast.AST, arg: str = keyword.arg) -> None:
                node.keywords = [k for k in node.keywords if k.arg != arg]  # type: ignore[attr-defined]

            yield call, f"{row} without {keyword.arg}", plain


def _called(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


# Field tables: a row that is dropped or misspelt does not pass the table's own check when it is
# made, which finds it at once; so a row is also set apart, not sent, or shown from its neighbour.


def _of_fields(table: ast.expr) -> Iterator[Found]:
    assert isinstance(table, ast.Call)
    every = [
        (place, number, kind, argument.value, _target(call, kind, argument.value))
        for place, call in enumerate(table.args)
        if isinstance(call, ast.Call) and (kind := _called(call)) in _FIELD_CALLS
        for number, argument in enumerate(call.args)
        if isinstance(argument, ast.Constant)
        and (kind in ("keep_names", "mark_read_only") or number == 0)
    ]  # fmt: skip
    for index, (place, number, kind, name, target) in enumerate(every):
        other = next(
            (
                one
                for one in (*every[index + 1 :], *every)
                if one[2] in ("keep_names", "rename_field", "mark_read_only") and one[4] != target
            ),
            None,
        )

        def misspelt_row(node: ast.AST, place: int = place, number: int = number) -> None:
            _misspell(node.args[place].args[number])  # type: ignore[attr-defined]

        yield table, f"{name} misspelt", misspelt_row
        if kind == "set_in_code":
            call = table.args[place]
            assert isinstance(call, ast.Call)
            if len(call.args) > 1:
                yield (
                    table,
                    f"{name} not named in errors",
                    _row_put(place, number, name, "None, None, is_sent=False"),
                )
            continue
        yield table, f"{name} set apart", _row_put(place, number, name, "None, None, is_sent=False")
        if kind != "nest_table" and other and target:
            sends = kind != "mark_read_only"
            theirs = other[4]
            yield (
                table,
                f"{name} shown off by one",
                _row_put(place, number, name, f"{target!r}, {theirs!r}, is_sent={sends}"),
            )
            if sends:
                yield (
                    table,
                    f"{name} sent off by one",
                    _row_put(place, number, name, f"{theirs!r}, {target!r}, is_sent=True"),
                )
        if kind in ("keep_names", "rename_field", "nest_table"):
            yield (
                table,
                f"{name} not sent",
                _row_put(place, number, name, f"{target!r}, {target!r}, is_sent=False"),
            )


def _target(call: ast.Call, kind: str, name: str) -> str:
    if kind == "rename_field" and isinstance(call.args[1], ast.Constant):
        return str(call.args[1].value)
    return name


def _row_put(place: int, number: int, name: str, rest: str) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        call = node.args[place]
        assert isinstance(call, ast.Call)
        if _called(call) in ("keep_names", "mark_read_only"):
            del call.args[number]
        else:
            del node.args[place]
        made = f"({_ROW}.FieldRow({name!r}, {rest}, reason='a mutant'),)"
        node.args.append(ast.parse(made, mode="eval").body)

    return change


# Flows


def _functions(top: ast.stmt) -> Iterator[ast.FunctionDef]:
    """The outermost ones, and methods of classes."""
    if isinstance(top, ast.FunctionDef):
        yield top
    elif isinstance(top, ast.ClassDef):
        yield from (one for one in top.body if isinstance(one, ast.FunctionDef))


_OPERATORS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_SUMS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def _of_flow(function: ast.FunctionDef) -> Iterator[Found]:  # noqa: C901 - one kind of node a branch
    skipped: set[int] = set()
    for node in ast.walk(function):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))  # a docstring
        elif isinstance(node, ast.JoinedStr | ast.arguments):
            skipped |= {id(one) for one in ast.walk(node) if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.AnnAssign):
            skipped |= {id(one) for one in ast.walk(node.annotation)}
        elif isinstance(node, ast.Raise):
            skipped |= {id(one) for one in ast.walk(node) if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Call) and _called(node) in (*_SAYING, "cast"):
            skipped |= {id(one) for one in node.args if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Constant):
            yield from _of_constant(node, f"{ast.unparse(node)[:40]}")
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
            yield node, f"{ast.unparse(node)[:60]} off by one", _shift
        elif isinstance(node, ast.BinOp) and type(node.op) in _SUMS and not _is_text(node):
            yield node, f"{ast.unparse(node)[:60]} turned round", _turn


def _is_text(node: ast.expr) -> bool:
    """Texts and lists are added as well, and cannot be subtracted."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    is_word = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_word or isinstance(node, ast.List | ast.JoinedStr | ast.Tuple)


def _shift(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = _OPERATORS[type(node.ops[0])]()


def _turn(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = _SUMS[type(node.op)]()
