"""other-sources.md, from the options of kinds that are no database."""

from __future__ import annotations

from docs.generate.attributes import attribute_docs
from docs.generate.markdown import code, table
from docs.generate.option_tables import option_table

from penstock.sources.files.options import FileFormat, FileSqlOptions, FileWithOptions, UnknownFields
from penstock.sources.load.options import LoadSqlOptions, LoadWithOptions

__all__ = ["page"]


def page() -> str:
    parts = [
        "# Other sources",
        "Sources that are no database. What is written in keywords stands in the first table of each, what is written "
        "in `WITH (…)` in the second; an option `poll_interval` is written `poll interval`. [How to read "
        "files](../how-to/read-files.md) shows them at work, and [how to add a kind of source](../how-to/"
        "add-a-kind-of-source.md) tells how packages bring more.",
        "## FILE",
        "A folder of files, as one table that has the name of the source.",
        option_table(FileSqlOptions),
        option_table(FileWithOptions),
    ]
    for title, kinds in (("format", FileFormat), ("unknown fields", UnknownFields)):
        docs = attribute_docs(kinds)
        parts.append(table([title, "meaning"], [[code(k.value), docs[k.name]] for k in kinds]))
    parts += [
        "Types of columns are `boolean`, `tinyint`, `smallint`, `int`, `bigint`, `float`, `double`, `decimal(p, s)`, "
        "`string`, `date` and `timestamp`. `poll interval` and `retain history` can be changed later.",
        "## LOAD GENERATOR",
        "Tables under a load that is drawn from a seed.",
        option_table(LoadSqlOptions),
        option_table(LoadWithOptions),
        "`rate` and `retain history` can be changed later.",
    ]
    return "\n\n".join(parts)
