"""Source of a target, found without running it: its file, its line, its neighbours."""

import ast
import importlib.util
import sys
from pathlib import Path

__all__ = ["file_of", "functions", "imported", "line_of", "local_imports", "texts"]


def file_of(target: str) -> Path | None:
    """Return the file of a target, ``path/to/file.py:f`` or ``package.module:f``.

    None if there is none, as for a module in C. Modules are looked for in the working
    directory first, as they are when the target is loaded; nothing is imported.
    """
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place) if Path(place).is_file() else None
    if not all(part.isidentifier() for part in place.split(".")):
        return None  # a program, or a function that no module holds
    package, *parts = place.split(".")
    here = Path(*place.split("."))
    candidates = [here.with_suffix(".py"), here / "__init__.py"]
    if package not in sys.builtin_module_names:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            inside = Path(folder, *parts)
            candidates += [inside.with_suffix(".py"), inside / "__init__.py"]
        if spec is not None and not parts and spec.origin is not None:
            candidates.append(Path(spec.origin))
    files = (path for path in candidates if path.suffix == ".py" and path.is_file())
    return next(files, None)


def line_of(target: str) -> int | None:
    """Return the line on which a target is defined; None if its file does not say."""
    path = file_of(target)
    tree = _parsed(path) if path is not None else None
    if tree is None:
        return None
    body, line = tree.body, None
    for name in target.rpartition(":")[2].split("."):
        statement = next((x for x in body if name in _names(x)), None)
        if statement is None:
            return line
        line, body = statement.lineno, getattr(statement, "body", [])
    return line


def functions(path: Path) -> list[str]:
    """Return the public functions that a file defines at its top level."""
    tree = _parsed(path)
    return [
        statement.name
        for statement in (tree.body if tree is not None else ())
        if isinstance(statement, ast.FunctionDef) and statement.name[0] != "_"
    ]


def texts(path: Path) -> dict[str, str]:
    """Return a file, and what it imports from its own folder, by their names.

    Raises
    ------
    OSError, UnicodeDecodeError
        If one of them cannot be read as text.
    """
    files = [path, *local_imports(path)[0]]
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def local_imports(path: Path) -> tuple[list[Path], list[str]]:
    """Return what a file imports from its own folder: files, and names of packages.

    The files import in turn; those that they import are among them.
    """
    files, packages = list[Path](), set[str]()
    pending = [path]
    while pending:
        current = pending.pop()
        for name in imported(current):
            file, package = path.parent / f"{name}.py", path.parent / name
            if file.is_file() and file not in (*files, path):
                files.append(file)
                pending.append(file)
            elif (package / "__init__.py").is_file():
                packages.add(name)
    return files, sorted(packages)


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def imported(path: Path) -> set[str]:
    """Return the first names of the modules that a file imports."""
    tree, names = _parsed(path), set[str]()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {
            target.id for target in statement.targets if isinstance(target, ast.Name)
        }
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()
