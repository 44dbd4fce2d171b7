"""``FROM KAFKA``: the classes of a source that reads topics."""

from __future__ import annotations

from pathlib import Path

from penstock.changelog.interface import ChangeLog
from penstock.sources.interface import Instance, InstanceFactory, Kind
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.kafka.tick_instance import TickInstance
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.polling import PollingFactory

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    return PollingFactory(_instance)


def _instance(config: KafkaConfig, log: ChangeLog, state: Path) -> Instance:
    """Create an instance that captures topics, by upstream transactions if there is transaction metadata."""
    assert isinstance(log, TopicLog), "see KafkaConfig.reading"
    ticks = log.ticks  # a reader of the whole log does not show the tables of ticks, which the instance continues
    if config.metadata is None:
        return TickInstance(config, ticks, state)
    from penstock.sources.kafka.transactions.instance import TransactionsInstance

    values = {table.topic.name: table.value_format for table in config.produced()}
    return TransactionsInstance(config, config.metadata, values, ticks, state)


KIND = Kind(KafkaSource, KafkaConfig, _factory)
