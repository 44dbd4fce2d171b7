"""Functions of users that sinks name: ``package.module:function``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from penstock.errors import UsageError

__all__ = ["named_function"]

_HINT = "Install its package where the home runs, or set PYTHONPATH to its folder; then start the home again."


def named_function(name: str) -> Callable[..., Any]:
    """Return a function by its name; raise `UsageError` if it cannot be imported."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"function {name} cannot be imported: {reason}"
        raise UsageError(message, _HINT) from error
    if not callable(found):
        message = f"{name} is not a function"
        raise UsageError(message, "Use 'package.module:function'.")
    function: Callable[..., Any] = found
    return function
