"""states.md, from `catalog/states.py`."""

from __future__ import annotations

import inspect
import textwrap

from docs.generate.attributes import attribute_docs
from docs.generate.markdown import code, table

from penstock.catalog.states import SinkState, SourceState, TableState

__all__ = ["page"]


def page() -> str:
    parts = [
        "# States",
        "States are stored in the catalog of the home, so they survive a restart. `penstock status`, `SHOW SOURCES`,"
        " `SHOW TABLES`, `SHOW SINKS` and the metrics (`penstock_source_state`, `penstock_table_state`)"
        " use the same names.",
    ]
    for title, states in (("Sources", SourceState), ("Tables", TableState), ("Sinks", SinkState)):
        docs = attribute_docs(states)
        rows = [[code(state.value), docs[state.name]] for state in states]
        drawing = inspect.cleandoc(states.__doc__ or "").partition("::\n\n")[2]
        parts += [f"## {title}", f"```text\n{textwrap.dedent(drawing).rstrip()}\n```"]
        parts += [table(["state", "meaning"], rows)]
    return "\n\n".join(parts)
