"""``penstock setup``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cache import cache_dir
from penstock.cli.options import DebugOption

__all__ = ["setup"]


def setup(
    no_jars: Annotated[bool, typer.Option("--no-jars", help="Do not download the jars for Spark.")] = False,
    no_kernels: Annotated[bool, typer.Option("--no-kernels", help="Do not compile the kernels.")] = False,
    debug: DebugOption = False,
) -> None:
    """Download the jars for Spark and compile the kernels, so that the first start needs no network and no wait.

    For images, and for machines without network access. What is in the cache already is not fetched again; the cache is
    PENSTOCK_CACHE, or the user's cache folder. Kernels are compiled for the processor of this machine, or for
    NUMBA_CPU_NAME, which then must be set for all other commands, too.

    Example: penstock setup
    """
    from penstock.engine.installation import compile_kernels, fetch_spark

    total = (0 if no_jars else fetch_spark(typer.echo)) + (0 if no_kernels else compile_kernels(typer.echo))
    typer.echo(f"setup complete: {total / 1_000_000:,.0f} MB in {cache_dir()}")
