"""The functions of sinks in this process: imported by name, or registered by `Home.sink`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sinks.function.spec import FunctionSink

__all__ = ["SinkFunction", "function_name", "function_of", "register", "unregister"]

SinkFunction = Callable[[Any, Lsn | None, Lsn], object]
"""Called with a DataFrame of changes, and the range (first, last] that they are from."""

_registered: dict[tuple[Path, str], SinkFunction] = {}


def register(home: Path, sink: str, function: SinkFunction) -> None:
    """Let this process call a function for a sink; another one of the same sink is replaced."""
    _registered[home.resolve(), sink] = function


def unregister(home: Path, sink: str) -> None:
    """Forget the function of a sink, if there is one."""
    _registered.pop((home.resolve(), sink), None)


def function_name(function: SinkFunction) -> str:
    """Return the name of a function, as ``module:function``."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def function_of(home: Path, sink: FunctionSink) -> SinkFunction:
    """Return the function of a sink; raise an error if this process does not have it."""
    if not sink.is_registered:
        return _imported(sink)
    found = _registered.get((home.resolve(), sink.name))
    if found is None:
        message = f"the function of sink {sink.name} is not registered in this process"
        hint = (
            f'Run the home in the program that calls home.sink("{sink.name}", …, {sink.function.partition(":")[2]}); '
            'or pass the name of the function, "package.module:function", which every process can import.'
        )
        raise TransientError(message, hint)
    return found


def _imported(sink: FunctionSink) -> SinkFunction:
    module, _, name = sink.function.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        message = f"function {sink.function} of sink {sink.name} cannot be imported: {error}"
        hint = "Install its package where the home runs, or set PYTHONPATH to its folder; then start the home again."
        raise DefiniteError(message, hint) from error
    if not callable(found):
        message = f"{sink.function} of sink {sink.name} is not a function"
        raise DefiniteError(message, "Call `home.sink` again with the name of a function.")
    function: SinkFunction = found
    return function
