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
    """Download the jars for Spark and compile kernels ahead, for images and machines without network access.

    The first start then downloads nothing, and no row waits for the compiler. What the cache already contains is kept;
    the cache is PENSTOCK_CACHE, or the user's cache folder. Kernels are compiled for the processor of this machine, or
    with NUMBA_CPU_NAME=generic, which must then be set for all commands, for any processor of the architecture.

    Example: penstock setup
    """
    from penstock.engine.installation import compile_kernels, fetch_spark

    total = (0 if no_jars else fetch_spark(typer.echo)) + (0 if no_kernels else compile_kernels(typer.echo))
    typer.echo(f"setup complete: {total / 1_000_000:,.0f} MB in {cache_dir()}")
