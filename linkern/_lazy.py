"""Public names that are imported when they are first used, and not before.

pytest loads `linkern.testing.pytest.plugin` in every environment that has linkern, and
with it every package above; whoever asks for nothing of ours should not pay for NumPy.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["attributes_of"]


def attributes_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Parameters
    ----------
    package : str
        Its name.
    homes : mapping of str to str
        Each public name, and the module that it is imported from. A name that is its
        own home is that module.
    """

    def getattr_(name: str) -> Any:
        if name not in homes:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        home = import_module(f"{package}.{homes[name]}")
        value = home if homes[name] == name else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_
