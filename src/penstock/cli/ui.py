"""``penstock ui``."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import typer

from penstock.cli.options import DebugOption, HomeOption
from penstock.errors import UsageError
from penstock.home import open_existing
from penstock.server.address import running_server

__all__ = ["ui"]


def ui(home: HomeOption = Path(".penstock"), debug: DebugOption = False) -> None:
    """Print the URL of the status page of a running home, and open it in a browser if there is one.

    If the server requires a token, the page asks for it.

    Example: penstock ui
    """
    server = running_server(open_existing(home).path)
    if server is None:
        message = f"no process runs the home {home}"
        raise UsageError(message, f"Start one: penstock run --home {home}")
    typer.echo(server.url)
    if _has_browser():
        webbrowser.open(server.url)


def _has_browser() -> bool:
    """Return whether a browser with windows can be opened; one in the terminal cannot show the page."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
