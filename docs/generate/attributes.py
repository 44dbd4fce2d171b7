"""The docstrings of class attributes."""

from __future__ import annotations

import ast
import inspect

__all__ = ["attribute_docs"]


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the string literals that follow the attributes of a class, by attribute."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    if not isinstance(tree, ast.ClassDef):
        raise TypeError(kind)
    docs = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            name = ast.unparse(before.targets[0])
            docs[name] = " ".join(str(after.value.value).split())
    return docs
