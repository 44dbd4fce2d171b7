"""In every module, ``__all__`` lists exactly the public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SRC = Path(__file__).parent.parent / "src"
MODULES = sorted(SRC.rglob("*.py"))
REEXPORTING = {
    "__init__.py",
    "__main__.py",
    "pyspark_penstock.py",
}  # the latter is imported by Spark to find the data source


def exported(tree: ast.Module) -> list[str] | None:
    """Return the value of ``__all__``, or None if the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            value = ast.literal_eval(node.value)
            assert isinstance(value, list), "__all__ is a list of names"
            return value
    return None


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements of a module define, also under ``if``, ``try`` and ``with``."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign():
                yield from (name for target in node.targets for name in bound(target))
            case ast.AnnAssign():
                yield from bound(node.target)
            case ast.If() | ast.Try() | ast.With():
                for part in ("body", "orelse", "finalbody"):
                    yield from defined(getattr(node, part, []))


def bound(target: ast.expr) -> Iterator[str]:
    """Yield the plain names, but no attributes, that the target of an assignment binds."""
    stored = (node for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    yield from (name.id for name in stored)


def imported(tree: ast.Module) -> set[str]:
    """Return the names that imports bind, including those under TYPE_CHECKING, which are loaded lazily."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}


def public(names: Iterator[str]) -> set[str]:
    """Filter out names that begin with an underscore."""
    return {name for name in names if not name.startswith("_")}


def is_empty(tree: ast.Module) -> bool:
    """Return whether a module has only a docstring and ``__future__`` imports."""
    return all(
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        for node in tree.body
    )


def problems(path: Path) -> list[str]:
    """Return what is wrong with the ``__all__`` of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = exported(tree)
    if names is None:
        return [] if path.name == "__init__.py" and is_empty(tree) else ["__all__ is missing"]
    own = public(defined(tree.body))
    reexported = imported(tree) if path.name in REEXPORTING else set()
    return [
        *(f"twice in __all__: {name}" for name in sorted(set(names)) if names.count(name) > 1),
        *(f"public, but not in __all__: {name}" for name in sorted(own - set(names))),
        *(f"in __all__, but not defined here: {name}" for name in sorted(set(names) - own - reexported)),
    ]


def test_all_lists_the_public_names() -> None:
    found = {str(path.relative_to(SRC)): problems(path) for path in MODULES}
    assert len(found) > 300, "all modules are checked"
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "__all__ is missing"),
        ("__all__ = []\ndef f(): ...", "public, but not in __all__: f"),
        ("__all__ = ['f']", "in __all__, but not defined here: f"),
        ("from os import path\n__all__ = ['path']", "in __all__, but not defined here: path"),
        ("__all__ = ['A', 'A']\nA = 1", "twice in __all__: A"),
    ],
)
def test_problems_are_found(tmp_path: Path, text: str, problem: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(text, encoding="utf-8")
    assert problems(module) == [problem]


def test_every_exported_name_can_be_imported() -> None:
    """Penstock imports names that need Spark lazily; every one of them must resolve."""
    missing = [name for name in penstock.__all__ if not hasattr(penstock, name)]
    assert missing == []
