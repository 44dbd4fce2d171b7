"""other-sources.md, from the options of sources that are not databases."""

from __future__ import annotations

from docs.generate.attributes import attribute_docs
from docs.generate.markdown import code, table
from docs.generate.option_tables import option_table

from penstock.sources.files.options import FileFormat, FileSqlOptions, FileWithOptions, UnknownFields
from penstock.sources.load_generator.source import LoadSqlOptions, LoadWithOptions

__all__ = ["page"]


def page() -> str:
    parts = [
        "# Other sources",
        "Sources other than Postgres and Kafka. For each, the first table lists the clauses, written as keywords "
        "before `WITH`, and the second one the options in `WITH (…)`. In SQL, write names with spaces: `poll "
        "interval`. See also [read files](../how-to/read-files.md), and [add a kind of "
        "source](../how-to/add-a-kind-of-source.md) for kinds in other packages.",
        "## FILE",
        "Reads a folder of files as one table, which has the name of the source.",
        option_table(FileSqlOptions),
        option_table(FileWithOptions),
    ]
    for title, kinds in (("format", FileFormat), ("unknown fields", UnknownFields)):
        docs = attribute_docs(kinds)
        parts.append(table([title, "meaning"], [[code(k.value), docs[k.name]] for k in kinds]))
    parts += [
        "The column types are `boolean`, `tinyint`, `smallint`, `int`, `bigint`, `float`, `double`, `decimal(p, s)`, "
        "`string`, `date` and `timestamp`. `poll interval` and `retain history` can be changed later.",
        "## LOAD GENERATOR",
        "Generates tables with a pseudorandom load, which the seed determines.",
        option_table(LoadSqlOptions),
        option_table(LoadWithOptions),
        "`rate` and `retain history` can be changed later.",
    ]
    return "\n\n".join(parts)
