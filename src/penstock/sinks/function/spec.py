"""A sink into a function as a value: the table that it reads, and the function that is called.

The function itself is not part of the value. It is imported by its name, or registered in the process that runs the
home: see `penstock.sinks.function.registration`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from penstock.errors import UsageError
from penstock.kafka_client.option_values import Word
from penstock.sinks.shared_options import NamedSink, RetainLimit
from penstock.sinks.words import SinkEnvelope

__all__ = ["FunctionSink", "RowFormat"]


class RowFormat(Word):
    """The format of the rows that a function is called with."""

    DATAFRAME = "dataframe"
    """A Spark DataFrame with the columns of ``format("penstock")``, ``rows=changes``."""


class FunctionSink(NamedSink, RetainLimit):
    """Changes of one table, passed to a function."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "FUNCTION"
    ALTERABLE: ClassVar[frozenset[str]] = frozenset({"retain_limit"})
    """Options that ``ALTER SINK … SET`` can change; `Home.sink` replaces the function."""
    envelope: ClassVar[SinkEnvelope] = SinkEnvelope.CHANGES
    format: ClassVar[RowFormat] = RowFormat.DATAFRAME

    table: str = Field(description="the local name of the table")
    function: str = Field(description="the function, as package.module:function")
    is_registered: bool = Field(description="whether the function is registered by a process, and is not imported")
    snapshot: bool = Field(default=True, description="whether the first call has the rows of the table")

    @model_validator(mode="after")
    def _importable(self) -> Self:
        module, colon, name = self.function.partition(":")
        parts = [*module.split("."), *name.split(".")]
        if not self.is_registered and not (colon and all(part.isidentifier() for part in parts)):
            message = f'invalid function name "{self.function}" of sink {self.name}'
            raise UsageError(message, 'Write it as "package.module:function", or pass the function itself.')
        return self

    @classmethod
    def of(cls, name: str, source: str, table: str | None, **options: Any) -> Self:
        """Return a sink with these options; raise `UsageError` for an invalid one."""
        if not table:
            message = f"sink {name} into a function requires a single table"
            raise UsageError(
                message, f'Write the table after the source: "{source}.table". Create a sink for each table.'
            )
        try:
            return cls.model_validate({**options, "name": name, "source": source, "table": table})
        except ValidationError as invalid:
            first = invalid.errors(include_input=False, include_url=False)[0]
            option = str(first["loc"][0]) if first["loc"] else name
            message = f'invalid value for option "{option}": {first["msg"][:1].lower()}{first["msg"][1:]}'
            raise UsageError(message, "See `home.sink` in the sinks reference.") from None

    @classmethod
    def why_fixed(cls, option: str) -> str:
        """Return why an option cannot be altered."""
        if option == "snapshot":
            return "the sink has already started"
        return "a second call of `home.sink` with the same name replaces the function"

    def place(self) -> str:
        """Return the function, for users."""
        return f"function {self.function}"

    def statement(self) -> str:
        """Return the call in Python that creates the sink."""
        function = self.function.partition(":")[2] if self.is_registered else repr(self.function)
        options = [repr(self.name), repr(f"{self.source}.{self.table}"), function]
        options += [] if self.snapshot else ["snapshot=False"]
        options += [] if self.retain_limit is None else [f"retain_limit={self.retain_limit!r}"]
        return f"home.sink({', '.join(options)})"
