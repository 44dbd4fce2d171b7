"""``FROM KAFKA``: the types of a source that reads topics."""

from __future__ import annotations

from pathlib import Path

from penstock.changelog.interface import ChangeLog
from penstock.sources.interface import Instance, InstanceFactory, Kind
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.kafka.tick_instance import FollowingInstance
from penstock.sources.polling import SteppingFactory

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    return SteppingFactory(_instance)


def _instance(config: KafkaConfig, log: ChangeLog, state: Path) -> Instance:
    """Make an instance that follows topics; by transactions, where these are told."""
    if config.metadata is None:
        return FollowingInstance(config, log, state)
    from penstock.sources.kafka.transactions.instance import TransactionsInstance

    values = {table.topic.name: table.value_format for table in config.produced()}
    return TransactionsInstance(config, config.metadata, values, log, state)


KIND = Kind(KafkaSource, KafkaConfig, _factory)
