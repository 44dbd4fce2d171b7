"""The options of a Kafka source after WITH: how to connect to brokers (`ConnectionOptions`), and how to read topics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.kafka_client.connection import ConnectionOptions, Rule, apply_rules
from penstock.kafka_client.option_values import Word, read_options
from penstock.sources.kafka.option_syntax import UNSUPPORTED, Offsets

__all__ = ["IsolationLevel", "KafkaWithOptions", "NewColumns", "OnError", "StartPoint", "TimestampType"]

_REMOVED = "ignore_source_keys"
_LAST_OFFSET = (1 << 63) - 1


class StartPoint(Word):
    """Where reading starts, in all partitions."""

    EARLIEST = "earliest"
    """At the first available message."""
    LATEST = "latest"
    """After the last message at the time the source is created."""


class IsolationLevel(Word):
    """Which messages of producer transactions are read."""

    READ_COMMITTED = "read_committed"
    """Those of committed transactions, in topic order."""
    READ_UNCOMMITTED = "read_uncommitted"
    """All messages, including those of aborted transactions."""


class TimestampType(Word):
    """The clock of message timestamps."""

    RECORD = "record"
    """The timestamp of the producer, unless the topic replaces it."""
    BROKER = "broker"
    """The clock of the broker. The topic must have `message.timestamp.type=LogAppendTime`."""


class OnError(Word):
    """Handling of a message that cannot be decoded."""

    STOP = "stop"
    """The table stops before the message, with an error."""
    QUARANTINE = "quarantine"
    """The message is quarantined, with the reason, and the table continues."""


class NewColumns(Word):
    """Handling of fields that values gain, unless the statement gives their schema."""

    ADD = "add"
    """Each becomes a column, from the first message that may have it."""
    HOLD = "hold"
    """They are ignored; `penstock check` reports those that the registry knows."""


class KafkaWithOptions(ConnectionOptions):
    """Options of a Kafka source other than brokers, topics, formats and envelope."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "a Kafka source"

    group_id_prefix: str = Field(
        default="penstock-", pattern=r"^[A-Za-z0-9._-]{1,200}$", description="prefix of consumer group names"
    )
    start_offset: Annotated[StartPoint | tuple[int, ...] | None, Offsets()] = Field(
        default=None,
        description="where reading starts: earliest (the default), latest, or an offset for each partition from "
        "partition 0 on; partitions without one start with their first message",
    )
    start_timestamp: str | None = Field(
        default=None, description="start with the first message at or after this time, such as 2026-11-16T03:00:00Z"
    )
    kafka_time_offset: int | None = Field(
        default=None, description="the same in milliseconds since 1970; if negative, relative to now"
    )
    isolation_level: IsolationLevel = Field(
        default=IsolationLevel.READ_COMMITTED, description="which messages of producer transactions are read"
    )
    statistics_interval_ms: int = Field(
        default=0,
        ge=0,
        le=86_400_000,
        description="interval of client statistics in milliseconds; the latest are in "
        "state/SOURCE/statistics.json of the home; 0 disables them",
    )
    topic_metadata_refresh_interval_ms: int = Field(
        default=300_000, ge=10, le=3_600_000, description="interval of metadata refreshes in milliseconds"
    )
    timestamp_frequency_ms: int = Field(
        default=1000, ge=10, le=3_600_000, description="interval of polls for new messages in milliseconds"
    )
    timestamp_type: TimestampType = Field(default=TimestampType.RECORD, description="clock of message timestamps")
    on_error: OnError = Field(default=OnError.STOP, description="handling of a message that cannot be decoded")
    quarantine_limit: int | None = Field(
        default=None,
        ge=1,
        description="maximum number of quarantined messages of a table; beyond it, the table stops; default: no limit",
    )
    new_columns: NewColumns = Field(
        default=NewColumns.ADD, description="handling of fields that values gain after the source is created"
    )

    @classmethod
    def given(cls, **options: Any) -> Self:
        """Parse options by name; raise `UsageError` if one is unknown, unsupported or invalid."""
        read = read_options(cls, cls.NAME, options, UNSUPPORTED)
        read.require_secrets()
        return read

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_home(cls, given: Any) -> Any:
        """Drop an option that no longer exists; the catalogs of earlier homes contain it, always as false."""
        if isinstance(given, dict) and given.get(_REMOVED) is False:
            return {option: value for option, value in given.items() if option != _REMOVED}
        return given

    @field_validator("start_offset", mode="before")
    @classmethod
    def _one_offset(cls, given: object) -> object:
        return (given,) if isinstance(given, int) and not isinstance(given, bool) else given

    @field_validator("start_offset")
    @classmethod
    def _not_negative(cls, start: StartPoint | tuple[int, ...] | None) -> StartPoint | tuple[int, ...] | None:
        if isinstance(start, tuple):
            _check_offsets(start)
        return start

    @field_validator("start_timestamp")
    @classmethod
    def _a_moment(cls, text: str | None) -> str | None:
        return None if text is None else _moment(text)

    @model_validator(mode="after")
    def _settings_together(self) -> Self:
        apply_rules(self, _RULES)
        return self


def _check_offsets(offsets: tuple[int, ...]) -> None:
    hint = f"Use {{ earliest | latest }}, or an offset for each partition, between 0 and {_LAST_OFFSET}."
    if not offsets:
        message = 'option "start_offset" has no offsets'
        raise UsageError(message, hint)
    if wrong := [offset for offset in offsets if not 0 <= offset <= _LAST_OFFSET]:
        message = f'value {wrong[0]} is out of bounds for option "start_offset"'
        raise UsageError(message, hint)


def _moment(text: str) -> str:
    """Return a timestamp in UTC; reject one without a time zone, whose meaning would depend on the machine."""
    try:
        read = datetime.fromisoformat(text.strip())
        moment = read.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        message = f'invalid value for option "start_timestamp": "{text}"'
        raise UsageError(message, "Use a timestamp with a time zone, such as 2026-11-16T03:00:00Z.") from None
    if read.utcoffset() is None:
        message = f'invalid value for option "start_timestamp": "{text}" has no time zone'
        zoned = read.isoformat()
        raise UsageError(message, f"Add the time zone: {zoned}Z for UTC, or {zoned}+02:00.")
    return moment


def _several_starts(options: KafkaWithOptions) -> bool:
    starts = options.start_offset, options.start_timestamp, options.kafka_time_offset
    return sum(start is not None for start in starts) > 1


_RULES: tuple[Rule, ...] = (
    (
        _several_starts,
        'options "start_offset", "start_timestamp" and "kafka_time_offset" are mutually exclusive',
        "Use only one of them.",
    ),
    (
        lambda o: o.quarantine_limit is not None and o.on_error is not OnError.QUARANTINE,
        'option "quarantine_limit" requires option "on_error" to be "quarantine"',
        'Set option "on_error" to quarantine, or remove option "quarantine_limit".',
    ),
)
