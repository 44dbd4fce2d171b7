"""What ENVELOPE DEBEZIUM remembers between batches: per partition, how far the upstream log has been followed.

It is of one size, whatever number of records was read: a position, the keys at just that position (two where a key
changed, at most a page of rows after a COPY), a time and a mark. Keys of a first snapshot are not in it: while that
lasts, they are those of the table that the records make. Stored in one step with that table, a state is all that is
needed to go on. Whoever has no such state begins from zero, with ``DebeziumState()`` and an empty table: also exact.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.errors import DefiniteError

__all__ = ["DebeziumState", "Progress"]

_FROZEN = ConfigDict(frozen=True, strict=True, extra="forbid")
_POSITION = r"^\d{40}$"


class Progress(BaseModel):
    """How far one partition has come. Its parts are facts about records read so far, so that facts can be added up."""

    model_config = _FROZEN

    snapshot: str | None = Field(default=None, pattern=r"^(\d{40})?$")
    """The position of the first snapshot; empty if it tells none, None if no row of one was read."""
    highest: str | None = Field(default=None, pattern=_POSITION)
    """The highest position of a change; None until the first, which ends the snapshot in this partition."""
    at_highest: tuple[str, ...] = ()
    """Digests of the keys of changes at that position, sorted."""
    latest: int | None = None
    """The latest time of a change, in milliseconds."""
    behind: bool = False
    """Whether the last change lies below the highest position: a replay that has not come to its end."""

    def then(self, later: Progress) -> Progress:
        """Return the progress after these records and the `later` ones."""
        return Progress(
            snapshot=later.snapshot if self.snapshot is None else self.snapshot,
            highest=_greater(self.highest, later.highest),
            at_highest=self._keys_with(later),
            latest=max((time for time in (self.latest, later.latest) if time is not None), default=None),
            behind=self.behind if later.highest is None else later.behind,
        )

    def _keys_with(self, later: Progress) -> tuple[str, ...]:
        if self.highest == later.highest:
            return tuple(sorted({*self.at_highest, *later.at_highest}))
        return later.at_highest if _greater(self.highest, later.highest) == later.highest else self.at_highest


class DebeziumState(BaseModel):
    """The progress of all partitions; ``DebeziumState()`` has read nothing."""

    model_config = _FROZEN

    partitions: dict[int, Progress] = Field(default_factory=dict)

    @property
    def snapshot_lasts(self) -> bool:
        """Whether some partition has rows of the first snapshot, and no change yet."""
        return any(one.snapshot is not None and one.highest is None for one in self.partitions.values())

    def then(self, read: Iterable[tuple[int, Progress]]) -> DebeziumState:
        """Return the state after more records, of which `read` tells per partition."""
        partitions = dict(self.partitions)
        for number, progress in read:
            partitions[number] = partitions.get(number, Progress()).then(progress)
        return DebeziumState(partitions=dict(sorted(partitions.items())))

    def to_json(self) -> str:
        """Write the state as text."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> DebeziumState:
        """Read what `to_json` wrote; `DefiniteError` for anything else."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            message = "the stored state of a Debezium topic cannot be read"
            raise DefiniteError(message, "read the topic from the beginning, into an empty table") from None


def _greater(one: str | None, other: str | None) -> str | None:
    return max((position for position in (one, other) if position is not None), default=None)
