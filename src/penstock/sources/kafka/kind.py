"""``FROM KAFKA``: the types of a source that reads topics."""

from __future__ import annotations

from penstock.sources.family import InstanceFactory, Kind
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.following import FollowingInstance
from penstock.sources.kafka.spec import KafkaSource
from penstock.sources.stepping import SteppingFactory

__all__ = ["KIND"]


def _factory() -> InstanceFactory:
    return SteppingFactory(FollowingInstance)


KIND = Kind(KafkaSource, KafkaConfig, _factory)
