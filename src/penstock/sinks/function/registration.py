"""The functions of sinks in this process: imported by name, or registered by `Home.sink`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sinks.function.spec import FunctionSink
from penstock.sinks.named_functions import named_function

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
        return named_function(sink.function)
    found = _registered.get((home.resolve(), sink.name))
    if found is None:
        message = f"the function of sink {sink.name} is not registered in this process"
        hint = (
            f'Run the home in the program that calls home.sink("{sink.name}", …, {sink.function.partition(":")[2]}); '
            'or pass the name of the function, "package.module:function", which every process can import.'
        )
        raise TransientError(message, hint)
    return found
