"""Loop variables of interpreted kernels: integers with the methods of a scalar tensor.

A compiled kernel sees the variable of a loop as a scalar tensor; in Triton's
interpreter it is a plain integer, without `to` or `dtype`.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

__all__ = ["LoopIndex", "install"]

# Name of `indices` in the globals of every interpreted kernel.
_NAME = "_linkern_loop_indices"
_CLOSED = ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor")


class LoopIndex(int):
    """Loop variable: an integer that also answers for the scalar tensor that it is."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the scalar tensor, such as `to`."""
        interpreter = import_module("triton.runtime.interpreter")
        return getattr(interpreter.interpreter_semantic.to_tensor(int(self)), name)


def _closed(name: str, *, swapped: bool) -> Callable[[LoopIndex, Any], Any]:
    """Return an operator under which indices and integers give indices again."""
    compute = getattr(operator, f"__{name}__")

    def apply(one: LoopIndex, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        pair = (int(other), int(one)) if swapped else (int(one), int(other))
        return LoopIndex(compute(*pair))

    return apply


for _name in _CLOSED:
    setattr(LoopIndex, f"__{_name}__", _closed(_name, swapped=False))
    setattr(LoopIndex, f"__r{_name}__", _closed(_name, swapped=True))


def indices(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a loop, its integers as `LoopIndex`."""
    for value in values:
        yield LoopIndex(value) if type(value) is int else value


def install() -> None:
    """Let every `for` of an interpreted kernel run over `indices`."""
    ast = import_module("ast")
    interpreter: Any = import_module("triton.runtime.interpreter")

    class Transformer(interpreter.ASTTransformer):  # type: ignore[misc]
        """Triton's own transformation of kernels, and that of their loops."""

        def visit_For(self, node: Any) -> Any:  # noqa: N802 -- named by `ast`
            self.generic_visit(node)
            name = ast.Name(id=_NAME, ctx=ast.Load())
            node.iter = ast.Call(func=name, args=[node.iter], keywords=[])
            return node

    # The interpreter copies its globals to those of each kernel.
    setattr(interpreter, _NAME, indices)
    interpreter.FunctionRewriter.ast_transformer = Transformer()
