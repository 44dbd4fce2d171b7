"""Options of a Kafka source as settings of its clients.

librdkafka (in Python) inspects topics; Spark's reader, which uses Kafka's Java client, reads them. `TRANSLATIONS` maps
each option to its name in either client, or gives the reason why one of them lacks it; the reference page shows this
table, and a test checks both translations against it. `penstock.kafka_client.settings` has the part of the table that
sources and sinks share.

Secrets are not in Spark's options: see `penstock.kafka_client.spark_options`.
"""

from __future__ import annotations

from pathlib import Path

from penstock.kafka_client.settings import (
    BROKER_NAMES,
    REGISTRY_NAMES,
    Names,
    connection_settings,
    verbatim_settings,
)
from penstock.kafka_client.spark_options import spark_connection_options
from penstock.sources.kafka.sql_options import KafkaSqlOptions, Metadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = [
    "TRANSLATIONS",
    "librdkafka_settings",
    "spark_options",
]


_SOURCE = "Used by the source itself."
_OWN_STATISTICS = "Spark's client reports its statistics through JMX and the query progress."

TRANSLATIONS: dict[str, Names] = {
    **BROKER_NAMES,
    "group_id_prefix": Names("group.id", "groupIdPrefix"),
    "start_offset": Names("the offsets that it is assigned", "startingOffsets"),
    "start_timestamp": Names("the offsets that it is assigned", "startingTimestamp"),
    "kafka_time_offset": Names("the offsets that it is assigned", "startingTimestamp"),
    "isolation_level": Names("isolation.level", "kafka.isolation.level", verbatim=True),
    "statistics_interval_ms": Names("statistics.interval.ms", verbatim=True, reason=_OWN_STATISTICS),
    "topic_metadata_refresh_interval_ms": Names(
        "topic.metadata.refresh.interval.ms", "kafka.metadata.max.age.ms", verbatim=True
    ),
    "timestamp_frequency_ms": Names(reason=_SOURCE),
    "timestamp_type": Names(reason=_SOURCE),
    "on_error": Names(reason=_SOURCE),
    "quarantine_limit": Names(reason=_SOURCE),
    "new_columns": Names(reason=_SOURCE),
    "allow_literal_secrets": Names(reason="Used to validate options."),
    **REGISTRY_NAMES,
}


# -- librdkafka --------------------------------------------------------------------------------------------------------

_FIXED = {"enable.auto.commit": "false", "enable.auto.offset.store": "false", "auto.offset.reset": "error"}
"""Penstock stores positions itself: nothing is committed, and a missing offset is an error instead of a reset."""


def librdkafka_settings(what: KafkaSqlOptions, how: KafkaWithOptions, source: str) -> dict[str, str]:
    """Return the settings of a consumer with secrets in clear text; call it right before creating the client."""
    return {
        **connection_settings(what.broker, how),
        **dict(verbatim_settings(TRANSLATIONS, how, "librdkafka")),
        "group.id": f"{how.group_id_prefix}{source}",
        **_FIXED,
    }


# -- Spark -------------------------------------------------------------------------------------------------------------


def spark_options(what: KafkaSqlOptions, how: KafkaWithOptions, source: str, private: Path) -> dict[str, str]:
    """Return all options except the start, which `Start.spark_options` returns.

    Secrets and certificates are written to a file of the source in the folder `private`.
    """
    headers = any(column.what == Metadata.HEADERS for column in what.include)
    return {
        **spark_connection_options(what.broker, how, private / f"{source}.properties"),
        "subscribe": ",".join(what.names()),
        "groupIdPrefix": f"{how.group_id_prefix}{source}",
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": "true",
        **dict(verbatim_settings(TRANSLATIONS, how, "spark")),
    }
