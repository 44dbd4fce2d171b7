"""Option ``transform``: the rows of a sink pass through a function of the user, from DataFrame to DataFrame, in Spark.

::

    images, with the columns of the sink ─┬─▶ whole rows, numbered ─▶ DataFrame ─▶ function ─▶ Arrow, by number ─┐
                                          └─▶ keys of old rows ────────────────────────────────────────────┴─▶ images

The function gets rows after ``where``, the selection of columns, redaction, formats and renaming. So a redacted value
is never in Spark. It works on each row by itself: it may add, change and remove columns, and leave out rows. It must
keep the key columns as they are, and the column ``_row_number``, by which its rows are put in the order of changes
again.

Old rows pass through the same function, so that the rows of a change agree. A row that is left out does not exist for
consumers, as with option ``where`` (`penstock.sinks.row_filter`).

**Schema.** The columns of messages are those that the function returns for an empty DataFrame. All of them can be null,
except key columns.

**Errors** of the function stop the sink. Their texts may contain values of rows, so only their types are shown; the
error for the empty DataFrame is shown with its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa

from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.model import Image
from penstock.sinks.messages import image_kinds
from penstock.sinks.named_functions import named_function
from penstock.sinks.row_filter import changes_of_passing_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ROW_NUMBER", "Session", "Transform"]

Session = Callable[[], "SparkSession"]
"""Returns the Spark session of the running home."""

ROW_NUMBER = "_row_number"
"""The column that the function must keep."""
_KEYS = (Image.BEFORE_KEY, Image.DELETED_KEY, Image.TRUNCATE)
"""Images without a whole row."""
_SHOWN = 300
"""So many characters of an error are shown."""


class Transform:
    """The function of a sink, for one version of one table."""

    def __init__(self, name: str, columns: pa.Schema, key: Sequence[str], session: Session | None) -> None:
        """Find the columns that the function returns; raise an error if they are not possible."""
        if session is None:
            message = f"function {name} requires Spark, and this process has no session"
            raise DefiniteError(message, "Start the home with `penstock run`.")
        if ROW_NUMBER in (column.lower() for column in columns.names):
            message = f'a sink with a function adds column "{ROW_NUMBER}", and the table already has one'
            raise UsageError(message, "Rename or exclude the column.")
        self._name, self._function, self._session = name, named_function(name), session
        self._given, self._key = columns, tuple(key)
        self._input = columns.append(pa.field(ROW_NUMBER, pa.int64(), nullable=False))
        self._output = self._checked(self._returned(self._input.empty_table(), has_rows=False).schema)
        self.columns: pa.Schema = self._output.remove(self._output.get_field_index(ROW_NUMBER))
        """The columns of messages."""

    def images(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Return images of whole changes with the rows that the function returns."""
        kinds, row = image_kinds(images), images.column("row")
        numbers = np.flatnonzero(~np.isin(kinds, _KEYS))
        rows = pa.Table.from_batches([pa.RecordBatch.from_struct_array(row.take(pa.array(numbers)))])
        found = self._rows(rows.append_column(ROW_NUMBER, pa.array(numbers)), row) if len(numbers) else None
        passes = np.zeros(len(kinds), np.bool_)
        place = np.zeros(len(kinds), np.int64)
        if found is not None:
            returned = found.column(ROW_NUMBER).to_numpy()
            passes[returned] = True
            place[returned] = np.arange(len(returned))
        taken = pa.array(place, mask=~passes)
        columns = [self._column(field, row, found, taken) for field in self.columns]
        missing = row.is_null() if row.null_count else None
        changed = {
            "row": pa.StructArray.from_arrays(columns, fields=list(self.columns), mask=missing),
            "_unchanged": pa.nulls(len(images), images.schema.field("_unchanged").type),
        }
        arrays = [changed.get(name, images.column(name)) for name in images.schema.names]
        fields = [field.with_type(array.type) for field, array in zip(images.schema, arrays, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        return changes_of_passing_rows(batch, passes, self._key)

    def _column(self, field: pa.Field, row: pa.StructArray, found: pa.Table | None, taken: pa.Array) -> pa.Array:
        """Return a column of all images: that of the function, but keys as they were, also of images without a row."""
        if field.name in self._key:
            return row.field(field.name)
        if found is None or not len(found):
            return pa.nulls(len(taken), field.type)
        return found.column(field.name).combine_chunks().take(taken)

    def _rows(self, rows: pa.Table, given: pa.StructArray) -> pa.Table:
        """Return what the function returns for rows, in their order."""
        found = self._returned(rows, has_rows=True)
        if found.schema.names != self._output.names or found.schema.types != self._output.types:
            self._fail("returned other columns than for an empty DataFrame", "Return the same columns always.")
        found = found.sort_by(ROW_NUMBER).combine_chunks()
        numbers = found.column(ROW_NUMBER).to_numpy()
        if (np.diff(numbers) == 0).any() or not np.isin(numbers, rows.column(ROW_NUMBER).to_numpy()).all():
            hint = f'Return at most one row for each row, with its "{ROW_NUMBER}".'
            self._fail(f'returned rows whose "{ROW_NUMBER}" is not that of one row', hint)
        for name in self._key:
            before, after = given.field(name).take(pa.array(numbers)), found.column(name).combine_chunks()
            if not before.equals(after):
                self._fail(f'changed key column "{name}"', "Add a column instead, and keep those of the key.")
        return found

    def _returned(self, rows: pa.Table, *, has_rows: bool) -> pa.Table:
        from pyspark.sql import DataFrame

        from penstock.spark.images import spark_schema
        from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error

        try:
            frame = self._session().createDataFrame(rows.cast(self._input), spark_schema(self._input))
            result = self._function(frame)
            if not isinstance(result, DataFrame):
                self._fail(f"returned {type(result).__name__}, not a DataFrame", "Return the DataFrame.")
            return result.toArrow()
        except PenstockError:
            raise
        except Exception as error:
            if is_spark_lost(error):
                raise spark_lost_error() from error
            text = _kind_of(error) if has_rows else _shortened(error)
            self._fail(f"failed: {text}", "Fix the function, then start the home again.")

    def _checked(self, returned: pa.Schema) -> pa.Schema:
        """Return the columns of messages, and the row number; raise an error if they are not possible."""
        for name in (*self._key, ROW_NUMBER):
            if name not in returned.names:
                self._fail(f'does not return column "{name}"', "Keep the column: add it to select(…).")
            if returned.field(name).type != self._input.field(name).type:
                self._fail(f'changes the type of column "{name}"', "Keep the column as it is.")
        if len({name.lower() for name in returned.names}) < len(returned.names):
            self._fail("returns several columns with the same name", "Rename or drop one of them.")
        for field in returned:
            if pa.types.is_null(field.type):
                hint = 'Cast it, for instance: lit(None).cast("string").'
                self._fail(f'returns column "{field.name}" without a type', hint)
        return pa.schema([self._field(field) for field in returned])

    def _field(self, field: pa.Field) -> pa.Field:
        is_kept = field.name in self._key or field.name == ROW_NUMBER
        return self._input.field(field.name) if is_kept else pa.field(field.name, field.type)

    def _fail(self, what: str, hint: str) -> NoReturn:
        """Raise the error of the function, without the error that caused it, whose text may contain values."""
        message = f"function {self._name} {what}"
        raise DefiniteError(message, hint) from None


def _kind_of(error: Exception) -> str:
    """Return the type of an error, and Spark's name of it; its text may contain values of rows."""
    condition = getattr(error, "getCondition", lambda: None)()
    return type(error).__name__ if condition is None else f"{type(error).__name__} [{condition}]"


def _shortened(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_SHOWN]}" if lines else type(error).__name__
