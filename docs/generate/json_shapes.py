"""The fields of a JSON document: types from the code, descriptions from the page."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from docs.generate.markdown import code, table

__all__ = ["shape"]


def shape(title: str, kind: Any, words: dict[str, str]) -> str:
    """Return a section that describes one object of a JSON document, field by field."""
    known = [field.name for field in dataclasses.fields(kind)]
    if known != list(words):
        raise KeyError(kind, known)
    rows = [[code(f.name), _json_type(str(f.type)), words[f.name]] for f in dataclasses.fields(kind)]
    return f"## {title}\n\n" + table(["field", "type", "meaning"], rows)


def _json_type(annotation: str) -> str:
    names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}
    names |= dict.fromkeys(["VerifyReport", "ProcessStatus", "SlotStatus", "DiskStatus"], "object")
    if annotation == "list[str]":
        return "list of strings"
    if listed := re.fullmatch(r"list\[(\w+)\]", annotation):
        return f"list of {re.sub('Status$|^Check|^Verify', '', listed[1]).lower()}s"
    if annotation in ("dict[str, Any]", "dict[str, int]"):
        return "object"
    return " or ".join(names[part] for part in annotation.split(" | "))
