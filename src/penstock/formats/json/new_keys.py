"""New keys of JSON messages: find the keys that the columns lack, and infer the columns that they add.

::

    messages ─▶ decoded with all known keys, others rejected ─▶ candidates ─▶ parsed ─▶ new keys ─▶ wider format
                  (compiled)                                     (few)

Almost all messages have known keys only. They are decoded, not parsed in Python: each value of a known key as its JSON
text, so that nothing else than an unknown key is found. A key is new if a message that the format can decode has it,
at one of the `places` (the root, or the rows of a Debezium record), with a value other than null. Until then there is
nothing to store, and the type is unknown.

The type is inferred from all messages of the call, by the rules of `penstock.formats.json.schemas`, or taken from the
schema in the messages, if the format was (`penstock.formats.json.connect_schema`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type

from penstock.formats.batch import decode_batch
from penstock.formats.format import Extra, JsonFormat, LogicalType, ResolvedFormat
from penstock.formats.json.connect_schema import connect_schema, merge_schema_texts, schema_text
from penstock.formats.json.schemas import inferred_columns
from penstock.formats.resolution import build_resolved_format

__all__ = ["NewKeys", "Place"]

Place = tuple[str, ...]
"""The keys that lead to an object whose keys are columns; empty for the message itself."""


class NewKeys:
    """Finds new keys in the messages of one format, batch after batch."""

    def __init__(self, resolved: ResolvedFormat, places: Sequence[Place], may_add: Callable[[str], bool]) -> None:
        """Look for keys at these places; `may_add` tells whether a key can be a column."""
        assert isinstance(resolved.format, JsonFormat)
        self.resolved = resolved
        self._places = [place for place in places if pa.types.is_struct(_type_at(resolved.physical_type, place))]
        self.may_add = may_add
        self._known: dict[Place, dict[str, None]] = {}
        self._nulls: set[tuple[Place, str]] = set()
        self._detector = self._detecting()

    def adopt(self, values: pa.Array | pa.ChunkedArray) -> bool:
        """Add the new keys of some messages to `resolved`; return whether there are any."""
        candidates = self._candidates(values)
        rows = [row for message in candidates for row in self._rows(message)]
        names = dict[str, str]()
        for row in rows:
            for name in row:
                names.setdefault(name.lower(), name)  # names of columns are not case-sensitive
        chosen = [{name: row[name] for name in row if names[name.lower()] == name} for row in rows]
        self._learn(candidates)
        if names:
            self.resolved = self._grown(candidates, [row for row in chosen if row])
        if candidates:
            self._detector = self._detecting()
        return bool(names)

    # -- candidates ----------------------------------------------------------------------------------------------------

    def _detecting(self) -> ResolvedFormat:
        """Return a format that rejects messages with unknown keys, and accepts any value of known ones."""
        raw: list[str] = []
        root = self._open((), self.resolved.physical_type, raw)
        columns = from_arrow_type(root).json()  # not checked: keys that are no columns may differ in case only
        return ResolvedFormat(format=JsonFormat(extra=Extra.REFUSE), columns=columns, raw=tuple(raw))

    def _open(self, path: Place, kind: pa.DataType, raw: list[str]) -> pa.DataType:
        """Return a type with the keys of an object on the way to a place, or of the place."""
        fields = dict.fromkeys(self._known.get(path, ()), pa.string()) | {field.name: field.type for field in kind}
        opened = []
        for name, held in fields.items():
            below = (*path, name)
            if any(place[: len(below)] == below for place in self._places) and pa.types.is_struct(held):
                opened.append(pa.field(name, self._open(below, held, raw)))
            else:
                raw.append(".".join(below))
                opened.append(pa.field(name, pa.string()))
        return pa.struct(opened)

    def _candidates(self, values: pa.Array | pa.ChunkedArray) -> list[bytes]:
        """Return the messages that may have new keys and that the format can decode."""
        rows, problems = decode_batch(values, self._detector)
        chosen = problems.is_valid()
        for place, name in self._nulls:
            found: pa.Array = rows
            for key in (*place, name):
                found = pc.struct_field(found, key)
            chosen = pc.or_(chosen, found.is_valid())
        asked = values.filter(chosen)
        if not len(asked):
            return []
        return list(asked.filter(decode_batch(asked, self.resolved).problems.is_null()).to_pylist())

    def _rows(self, message: bytes) -> Iterator[dict[str, Any]]:
        """Yield the new keys of a message with their values, place by place."""
        loaded = json.loads(message)
        for place in self._places:
            row = _value_at(loaded, place)
            known = {field.name for field in _type_at(self.resolved.physical_type, place)}
            if isinstance(row, dict):
                new = {
                    name: value
                    for name, value in row.items()
                    if value is not None and name not in known and self.may_add(name)
                }
                if new:
                    yield new

    def _learn(self, candidates: Iterable[bytes]) -> None:
        """Remember the keys that are no columns: those beside the places, excluded ones, and nulls."""
        paths = {place[:depth] for place in self._places for depth in range(len(place) + 1)}
        for message in candidates:
            loaded = json.loads(message)
            for path in paths:
                for name, value in _entries(_value_at(loaded, path)):
                    self._known.setdefault(path, {})[name] = None
                    if path in self._places and value is None and self.may_add(name):
                        self._nulls.add((path, name))

    # -- the wider format ----------------------------------------------------------------------------------------------

    def _grown(self, candidates: Sequence[bytes], rows: Sequence[dict[str, Any]]) -> ResolvedFormat:
        new = {name for row in rows for name in row}
        self._nulls = {(place, name) for place, name in self._nulls if name not in new}
        if self.resolved.reader:
            return self._from_schemas(candidates, new)
        kind, raw = inferred_columns(json.dumps(row).encode() for row in rows)
        return self._with_fields(list(kind), [tuple(path.split(".", 1)) for path in raw])

    def _from_schemas(self, candidates: Sequence[bytes], new: set[str]) -> ResolvedFormat:
        """Return the format with the fields that the schemas in these messages have, schema by schema."""
        result = self.resolved
        for message in {schema_text(message): message for message in candidates}.values():
            found = connect_schema([message])
            if found is None:
                continue
            place = self._places[-1]
            known = {field.name for field in _type_at(result.physical_type, place)}
            row = _type_at(found.columns, place)
            added = [field for field in row if field.name in new - known] if pa.types.is_struct(row) else []
            prefix = ".".join(place)
            raw = [tuple(path[len(prefix) + 1 :].split(".", 1)) for path in found.raw if path.startswith(f"{prefix}.")]
            logical = [(path[len(place) :], kind) for path, kind in found.logical_types if path[: len(place)] == place]
            text = merge_schema_texts(result.reader, found.text, self._places, {field.name for field in added})
            result = self._with_fields(added, raw, logical, base=result, reader=text)
        return result

    def _with_fields(
        self,
        added: Sequence[pa.Field],
        raw: Iterable[tuple[str, ...]],
        logical: Iterable[LogicalType] = (),
        base: ResolvedFormat | None = None,
        reader: str = "",
    ) -> ResolvedFormat:
        """Return a format with fields added at all places; paths of `raw` and `logical` begin at a place."""
        base = self.resolved if base is None else base
        names = {field.name for field in added}
        root, every, types = base.physical_type, list(base.raw), list(base.logical_types)
        for place in self._places:
            root = _with_fields_at(root, place, added)
            every += [".".join((*place, *path)) for path in raw if path[0].partition("[")[0] in names]
            types += [((*place, *path), kind) for path, kind in logical if path and path[0] in names]
        return build_resolved_format(base.format, root, reader=reader or base.reader, raw=every, logical_types=types)


def _type_at(kind: pa.DataType, place: Place) -> pa.DataType:
    for name in place:
        index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if index < 0:
            return pa.null()
        kind = kind.field(index).type
    return kind


def _with_fields_at(kind: pa.DataType, place: Place, added: Sequence[pa.Field]) -> pa.DataType:
    if not place:
        return pa.struct([*kind, *added])
    fields = [
        field.with_type(_with_fields_at(field.type, place[1:], added)) if field.name == place[0] else field
        for field in kind
    ]
    return pa.struct(fields)


def _value_at(loaded: Any, place: Place) -> Any:
    for name in place:
        loaded = loaded.get(name) if isinstance(loaded, dict) else None
    return loaded


def _entries(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()
