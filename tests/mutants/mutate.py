"""Mutants of a module: one node of its syntax tree is replaced in the text, the rest of the file stays as it is."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

LOGGING: Final = {"debug", "info", "warning", "error", "exception"}
T = TypeVar("T", bound=ast.AST)

SHOWN: Final = {"__repr__", "__str__"}

COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}


class Mutation(NamedTuple):
    """A change of one node.

    Attributes:
        function: Qualified name of the function.
        line: Number of the first line of the node, from 1.
        original, mutated: The lines with the node, before and after, without indentation.
        source: Text of the whole module after it.
    """

    function: str
    line: int
    original: str
    mutated: str
    source: bytes

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies it after a move, or after a change elsewhere."""
        return self.function, self.original, self.mutated

    def compiles(self) -> bool:
        """Return whether the module is one still."""
        try:
            compile(self.source, self.function, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True


class Place(NamedTuple):
    """A node of a module, and what may take its place.

    Attributes:
        function: Qualified name of the function.
        node, new: The two, which are expressions or statements.
    """

    function: str
    node: ast.expr | ast.stmt
    new: ast.expr | ast.stmt

    def mutation(self, source: bytes) -> Mutation:
        """Return the mutation of a module."""
        assert self.node.end_lineno is not None
        assert self.node.end_col_offset is not None
        lines = source.splitlines(keepends=True)
        first, last = self.node.lineno - 1, self.node.end_lineno - 1
        # Without parentheses an operator beside it could bind its parts.
        is_whole = isinstance(self.new, (ast.stmt, ast.Name, ast.Constant))
        text = ast.unparse(self.new) if is_whole else f"({ast.unparse(self.new)})"
        changed = lines[first][: self.node.col_offset] + text.encode() + lines[last][self.node.end_col_offset :]
        mutated = b"".join([*lines[:first], changed, *lines[last + 1 :]])
        original = b"".join(lines[first : last + 1])
        return Mutation(self.function, self.node.lineno, _shown(original), _shown(changed), mutated)


def places(source: bytes) -> list[Place]:
    """Return all that may be changed in the functions of a module, in the order of its lines."""
    nodes = _nodes(ast.parse(source), ())
    return [Place(function, *change) for function, node in nodes for change in _changes(node)]


def _nodes(node: ast.AST, names: tuple[str, ...], inside: bool = False) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes of functions, each with the name of its function.

    Constants of modules and classes are left out: most are settings that any value near them would serve as. So is what
    nobody computes with: docstrings, annotations, texts of errors and logs.
    """
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if not isinstance(child, ast.AST) or _is_left_out(child):
                continue
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            below = names
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                below = (*names, child.name)
            elif inside:
                yield ".".join(names), child
            yield from _nodes(child, below, inside or is_function)


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        marks = [ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list]
        return node.name in SHOWN or "overload" in marks or "abstractmethod" in marks
    if isinstance(node, ast.ClassDef):
        return any("Protocol" in ast.unparse(base) for base in node.bases)
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Expr):
        value = node.value
        is_log = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in LOGGING
        return is_log or isinstance(value, ast.Constant)
    if isinstance(node, ast.keyword):
        return node.arg == "strict"  # of zip: an assertion
    return isinstance(node, (ast.Assert, ast.Raise, ast.JoinedStr))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Yield nodes, each with what may take its place: the node itself, or its condition."""
    if isinstance(node, (ast.expr, ast.stmt)):
        yield from ((node, new) for new in _replacements(node))
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
            # Others are negated by themselves.
            if not isinstance(test, (ast.UnaryOp, ast.Constant)) and not _is_equation(test):
                yield test, ast.UnaryOp(ast.Not(), test)


def _is_equation(node: ast.expr) -> bool:
    """Return whether the change of a comparison negates it."""
    return isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))


def _replacements(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Compare(ops=[op]):
            yield _changed(node, ops=[COMPARED[type(op)]()])
        case ast.BoolOp(op=op, values=values):
            yield _changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for number in range(len(values)):
                rest = values[:number] + values[number + 1 :]
                yield rest[0] if len(rest) == 1 else _changed(node, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op, left=left, right=right) if type(op) in COMPUTED and not (
            _is_text(left) or _is_text(right)
        ):
            yield _changed(node, op=COMPUTED[type(op)]())
        case ast.AugAssign(op=op) if type(op) in COMPUTED:
            yield _changed(node, op=COMPUTED[type(op)]())
            yield ast.Pass()
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        case ast.Name(id=name, ctx=ast.Load()) if name in CALLED:
            yield ast.Name(CALLED[name], ast.Load())
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and not isinstance(node.value, int))


def _changed(node: T, **fields: object) -> T:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _shown(lines: bytes) -> str:
    return " ".join(lines.decode().split())
