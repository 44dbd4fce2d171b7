"""Schema evolution for Avro: merge the new fields of a newer schema, each at the end of its record.

An added field without a default is null in older messages.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.formats.avro.schema import AvroField, AvroType
from penstock.formats.avro.types import column_type, members

__all__ = ["merge_avro_schema"]


def merge_avro_schema(ours: AvroType, theirs: AvroType, conflicts: list[str]) -> AvroType:
    """Return our schema with the fields that theirs adds; other differences are appended to `conflicts`."""
    return _Merger(conflicts).merge(ours, theirs, "")


class _Merger:
    def __init__(self, conflicts: list[str]) -> None:
        self._conflicts = conflicts
        self._merged: dict[str, AvroType] = {}

    def merge(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        if ours.kind == "union":
            return self._union(ours, theirs, path)
        theirs = members(theirs)[0] if len(members(theirs)) == 1 else theirs
        if ours.kind == theirs.kind == "record":
            return self._record(ours, theirs, path)
        if ours.kind == theirs.kind and ours.kind in ("array", "map"):
            return replace(ours, items=self.merge(ours.inner, theirs.inner, f"{path}[]"))
        same = column_type(ours) == column_type(theirs) and ours.connect_name == theirs.connect_name
        if ours.kind in ("array", "map") or not same:
            self._conflicts.append(f'field "{path}": {theirs} in the newer schema, {ours} in the reader schema')
        return ours

    def _union(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        own, other = members(ours), members(theirs)
        if len(own) != 1 or len(other) != 1:
            if [str(one) for one in own] != [str(one) for one in other]:
                self._conflicts.append(f'field "{path}": union has other members in the newer schema')
            return ours
        merged = self.merge(own[0], other[0], path)
        return replace(ours, branches=[merged if one is own[0] else one for one in ours.branches])

    def _record(self, ours: AvroType, theirs: AvroType, path: str) -> AvroType:
        """Merge a record once: a name denotes one type wherever it is used."""
        if ours.name in self._merged:
            return self._merged[ours.name]
        merged = replace(ours, fields=[])
        self._merged[ours.name] = merged
        others = {one.name: one for one in theirs.fields}
        for one in ours.fields:
            below = f"{path}.{one.name}" if path else one.name
            other = others.pop(one.name, None) or next((others.pop(a) for a in one.aliases if a in others), one)
            merged.fields.append(replace(one, type=self.merge(one.type, other.type, below)))
        merged.fields += [_nullable(one) for one in others.values()]
        return merged


def _nullable(one: AvroField) -> AvroField:
    """Return an added field with a default, so that older messages may lack it."""
    if one.has_default:
        return one
    null = AvroType("null")
    if one.type.kind != "union":
        return replace(one, type=AvroType("union", branches=[null, one.type]), default=None)
    if any(branch.kind == "null" for branch in one.type.branches):
        return replace(one, default=None)
    return replace(one, type=replace(one.type, branches=[null, *one.type.branches]), default=None)
