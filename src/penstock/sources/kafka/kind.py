"""``FROM KAFKA``: the classes of a source that reads topics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.changelog.interface import ChangeLog, LoggedTable
from penstock.model import TableName
from penstock.sources.interface import Instance, InstanceFactory, Kind
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.kafka.tick_instance import TickInstance
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.polling import PollingFactory

if TYPE_CHECKING:
    from penstock.sources.kafka.schema_followers import SchemaFollower

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    return PollingFactory(_instance)


def _instance(config: KafkaConfig, log: ChangeLog, state: Path) -> Instance:
    """Create an instance that captures topics, by upstream transactions if there is transaction metadata."""
    assert isinstance(log, TopicLog), "see KafkaConfig.reading"
    ticks = log.ticks  # a reader of the whole log does not show the tables of ticks, which the instance continues
    if config.metadata is None:
        return TickInstance(config, ticks, state, partial(_followers, config))
    from penstock.sources.kafka.transactions.instance import TransactionsInstance

    values = {table.topic.name: table.value_format for table in config.produced()}
    return TransactionsInstance(config, config.metadata, values, ticks, state, partial(_followers, config))


def _followers(config: KafkaConfig, logged: Mapping[TableName, LoggedTable]) -> dict[str, SchemaFollower]:
    """Return what follows the schemas of the topics, from the columns on that the log has."""
    from penstock.sources.kafka.schema_followers import follower_of

    found = {}
    for table in config.produced():
        known = logged.get(table.name)
        current = table if known is None else table.with_logged_columns(known.schema)
        follower = follower_of(current, config.what, config.how, config.source)
        if follower is not None:
            found[table.topic.name] = follower
    return found


KIND = Kind(KafkaSource, KafkaConfig, _factory)
