"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DebugOption", "HomeOption", "JsonOption"]

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="PENSTOCK_HOME", help="The folder in which everything local lives.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
