"""Tables of the options of a source or sink, from their model."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import get_args

from docs.generate.attributes import attribute_docs
from docs.generate.markdown import code, table
from pydantic import BaseModel

from penstock.sql.syntax.option_parser import Option
from penstock.sql.syntax.values import Flag

__all__ = ["choices", "clause_rows", "option_table", "setting_rows"]


def option_table(model: type[BaseModel], names: Iterable[str] = ()) -> str:
    """Return a table of the options of a model, or of some of them."""
    rows = []
    for name in names or model.model_fields:
        field = model.model_fields[name]
        kind = field.annotation
        offered = next((c for c in (kind, *get_args(kind)) if isinstance(c, type) and issubclass(c, enum.Enum)), None)
        listed = ", ".join(code(str(choice.value)) for choice in offered) if offered else ""
        value = _SHAPES.get(name) or listed or _named(str(kind))
        unsaid = field.is_required() or field.default in (None, ()) or name in _SHAPES
        default = "" if unsaid else code(str(field.default).lower())
        rows.append([code(name), value, default, f"{str(field.description)[0].upper()}{str(field.description)[1:]}."])
    return table(["option", "value", "default", "meaning"], rows)


def clause_rows(options: Iterable[Option]) -> list[list[str]]:
    """Return SQL syntax and meaning of options that are clauses."""
    return [[code(option.form), _meaning(option)] for option in options]


def setting_rows(options: Iterable[Option]) -> list[list[str]]:
    """Return name, value, default and meaning of options in WITH, as SQL has them."""
    return [_setting(option) for option in options]


def _meaning(option: Option) -> str:
    text = str(option.info.description)
    return f"{text[0].upper()}{text[1:]}."


def _setting(option: Option) -> list[str]:
    default = option.info.get_default(call_default_factory=True, validated_data={})
    shown = "" if default in (None, (), {}) else option.syntax.write(default)
    form = "`true`, `false`" if isinstance(option.syntax, Flag) else code(option.syntax.form)
    return [code(option.setting), form, code(shown) if shown else "", _meaning(option)]


def _named(kind: str) -> str:
    """Describe the values of a type that is not an enum."""
    if "FormatOptions" in kind or "AvroOptions" in kind:
        return "a [format](#formats) and its options"
    if "GivenColumn" in kind:
        return "list of columns, each a name and a type" + (", or their number" if "int" in kind else "")
    return _OPTION_TYPES[kind.replace("<class '", "").replace("'>", "")]


def choices(title: str, kind: type[enum.StrEnum]) -> list[str]:
    """Return a section that lists the values of an option."""
    docs = attribute_docs(kind)
    return [f"## {title}", table(["value", "meaning"], [[code(k.value), docs[k.name]] for k in kind])]


_OPTION_TYPES = {
    "str": "text",
    "str | None": "text",
    "tuple[str, ...]": "list of text",
    "bool": "true, false",
    "float": "number",
    "int": "number",
    "int | None": "number",
    "penstock.kafka_client.secrets.Secret | None": "reference",
    "typing.Optional[penstock.kafka_client.secrets.Secret]": "reference",
}
_SHAPES = {
    "start_offset": "`earliest`, `latest`, or a list of numbers",
    "include": "list of [columns](#columns-of-include), optionally AS another name",
    "envelope": "an [envelope](#envelopes), optionally with the topic of transaction metadata",
}
