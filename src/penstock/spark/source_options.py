"""The options of ``format("penstock")``, and what their values mean."""

from __future__ import annotations

import difflib
import enum
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.positions import Lsn, parse_as_of

__all__ = ["EARLIEST", "LATEST", "PenstockOptions", "Rows", "parse_position"]

EARLIEST, LATEST = "earliest", "latest"


class Rows(enum.StrEnum):
    """The shape of rows."""

    CHANGES = "changes"
    """One row per change, before and after."""
    UPDATES = "updates"
    """The row's columns and how many more of it there are: +1 or -1."""
    LIVE = "live"
    """The table itself, at one position. Batch only."""


class PenstockOptions(BaseModel):
    """The options of ``format("penstock")``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: str = Field(description="The home of the source: a folder that the driver can read")
    source: str = Field(description="The source's name")
    table: str = Field(
        description="The upstream table, as schema.table; several, with commas between them, come as rows of JSON"
    )
    rows: Rows = Field(Rows.CHANGES, description="The shape of rows: changes, updates, or (batch only) live")
    starting_position: str | None = Field(
        None,
        alias="startingPosition",
        description="Where to begin: earliest (the table as it is now, then its changes), latest, an LSN or a time"
        " (what came after it). A stream begins at latest, a batch at earliest, unless told otherwise",
    )
    ending_position: str = Field(
        LATEST, alias="endingPosition", description="Batch only: up to this LSN or time, or up to now: latest"
    )
    as_of: str | None = Field(
        None,
        alias="asOf",
        description="With rows=live: the table as it was at this LSN or time, which names its zone; without, as it is"
        " now",
    )
    max_rows: int | None = Field(
        None,
        alias="maxRowsPerTrigger",
        ge=1,
        description="Stream only: about how many changes a micro-batch has at most; a transaction is never divided",
    )
    max_bytes: int | None = Field(
        None, alias="maxBytesPerTrigger", ge=1, description="Stream only: the same, by their size in the log, in bytes"
    )
    reader: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,60}$",
        description="Stream only: the name of a registered reader; the log keeps what it has not read, however long it"
        " is away. Without, history is kept for as long as the source retains it",
    )

    @classmethod
    def parse(cls, given: dict[str, str]) -> PenstockOptions:
        """Read options as Spark gives them, their names in any case; refuse unknown ones by name."""
        names = {(field.alias or name).lower(): field.alias or name for name, field in cls.model_fields.items()}
        for name in given:
            if name.lower() not in names:
                near = difflib.get_close_matches(name.lower(), names, 1)
                hint = f"Did you mean {names[near[0]]}?" if near else f"Known are: {', '.join(names.values())}."
                message = f"format penstock has no option {name!r}"
                raise UsageError(message, hint)
        try:
            options = cls.model_validate({names[name.lower()]: value for name, value in given.items()})
        except ValidationError as error:
            first = error.errors()[0]
            message = f"option {first['loc'][0]} of format penstock: {first['msg']}"
            raise UsageError(message, "See the reference of the Spark source.") from error
        if options.as_of is not None and options.rows is not Rows.LIVE:
            message = f"rows={options.rows} has no option asOf"
            remedy = "Read the table with rows=live, or a range with startingPosition and endingPosition."
            raise UsageError(message, remedy)
        return options

    @field_validator("starting_position", "ending_position")
    @classmethod
    def _is_a_position(cls, text: str | None, info: object) -> str | None:
        if text is not None and text != EARLIEST:
            parse_position(text)
        return text

    @field_validator("as_of")
    @classmethod
    def _is_an_as_of(cls, text: str | None) -> str | None:
        if text is not None:
            parse_as_of(text)
        return text

    def table_names(self) -> tuple[TableName, ...]:
        """Return the tables to read."""
        try:
            return tuple(dict.fromkeys(TableName.parse(name.strip()) for name in self.table.split(",")))
        except ValueError as error:
            raise UsageError(str(error), "Name the upstream table, like public.orders.") from error


def parse_position(text: str) -> Lsn | datetime | None:
    """Read an LSN or a time (UTC where it does not say); None for `LATEST`."""
    if text == LATEST:
        return None
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is not a position"
        remedy = "Give an LSN like 16/B374D848, a time like 2026-11-15T12:00:00Z, or latest; to begin with: earliest."
        raise UsageError(message, remedy) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
