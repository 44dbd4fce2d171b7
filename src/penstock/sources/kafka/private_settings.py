"""Settings of Kafka's Java client that are not in Spark's options, but in a private file that the options point to.

::

    sasl.jaas.config=…"hunter2"; ─▶ FOLDER/NAME.properties (mode 600)
                                       ▲ read by the client, on the driver and on executors (Kafka's FileConfigProvider)
    option("kafka.sasl.jaas.config", "${file:FOLDER/NAME.properties:sasl.jaas.config}") ─▶ plans, UI, event log, logs

The plan of a stream prints all options. Spark hides those whose name or value looks like a secret to it
(``spark.redaction.regex``: secret, password, token, access key), and a private key does not; nor does a password to a
session with another expression. So Spark never has the value. On a cluster the folder is a shared one, at the same path
everywhere, as the lake is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import UsageError
from penstock.sources.kafka.private_files import write_private

__all__ = ["point_to"]

_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"
_AWKWARD = re.compile(r"[:{},\x00-\x1f]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


def point_to(settings: Mapping[str, str], file: Path) -> dict[str, str]:
    """Write settings of the Java client into a private file; return the options of Spark that stand for them."""
    if not settings:
        return {}
    place = file.absolute()
    if _AWKWARD.search(str(place)):
        message = f"the path {place} cannot be pointed to from Kafka's settings: it has a colon, comma or brace"
        raise UsageError(message, "Name a folder whose path has none of them.")
    write_private(place, "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items())))
    pointers = {f"kafka.{name}": f"${{file:{place}:{name}}}" for name in settings}
    return {
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": _PROVIDER,
        # Nothing else can be read in this way, whatever another option says.
        "kafka.config.providers.file.param.allowed.paths": str(place),
        **pointers,
    }


def _escaped(value: str) -> str:
    """Write a value so that `java.util.Properties` reads it back."""
    text = value.translate(_ESCAPES)
    return f"\\{text}" if text.startswith(" ") else text
