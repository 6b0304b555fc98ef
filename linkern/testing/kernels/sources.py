"""The kernel that shows what breaks a law, and its source as it is written here."""

import ast
import inspect
from importlib import import_module
from pkgutil import iter_modules

from linkern.testing.kernels import mutants
from linkern.testing.kernels.mutants import MUTANTS, Mutant
from linkern.testing.kernels.planted import PLANTED

__all__ = ["kernels_that_break", "source_of"]

_MODULES = (
    *(f"{mutants.__name__}.{one.name}" for one in iter_modules(mutants.__path__)),
    "linkern.testing.kernels.planted",
)
_ENTERED_BY = ("enter", "plant")


def kernels_that_break(check: str) -> tuple[Mutant, ...]:
    """Return the kernels that a check must catch, those made to break it first."""
    kernels = (*MUTANTS.values(), *PLANTED.values())
    first = [one for one in kernels if one.checks[0] == check]
    return (*first, *(one for one in kernels if check in one.checks[1:]))


def source_of(mutant: Mutant) -> str:
    """Return the source of a kernel: its entry, after the definitions it names.

    Definitions are those of the module in which it is entered.

    Raises
    ------
    LookupError
        If no module enters it.
    """
    for name in _MODULES:
        source = inspect.getsource(import_module(name))
        tree = ast.parse(source)
        entry = next((node for node in tree.body if _enters(node, mutant.name)), None)
        if entry is not None:
            nodes = [*_named_by(entry, tree), entry]
            texts = (_text(source, node) for node in nodes)
            return "\n\n".join(texts)
    msg = f"no module enters the kernel {mutant.name}"
    raise LookupError(msg)


def _enters(node: ast.stmt, name: str) -> bool:
    """Return True if a statement enters the kernel of that name."""
    match node:
        case ast.Expr(ast.Call(ast.Name(function), [ast.Constant(first), *_])):
            return function in _ENTERED_BY and first == name
    return False


def _named_by(entry: ast.stmt, tree: ast.Module) -> list[ast.stmt]:
    """Return the definitions that a statement needs, in the order of the module."""
    defined = {name: node for node in tree.body for name in _defines(node)}
    needed: set[str] = set()
    waiting: list[ast.AST] = [entry]
    while waiting:
        names = {n.id for n in ast.walk(waiting.pop()) if isinstance(n, ast.Name)}
        new = names & {*defined} - needed
        needed |= new
        waiting += [defined[name] for name in new]
    nodes = {id(defined[name]): defined[name] for name in needed}
    return sorted(nodes.values(), key=lambda node: node.lineno)


def _defines(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return [] if name in _ENTERED_BY else [name]
        case ast.Assign(targets):
            return [one.id for one in targets if isinstance(one, ast.Name)]
    return []


def _text(source: str, node: ast.stmt) -> str:
    """Return the source of a statement, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
