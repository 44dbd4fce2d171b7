"""Topics of sinks at real brokers: created as requested or required to exist, and checked beforehand."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic
from tests.servers import SharedBroker, unique

from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.sinks.kafka.topics import TopicSettings, check_topics, ensure_positions_topic, ensure_topics
from penstock.sources.findings import Finding, Level
from penstock.testing.kafka import PLAIN_USER
from penstock.testing.waiting import PATIENCE, until

CANARY = "canary-4711"
NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


class Topics:
    """The topics of a broker."""

    def __init__(self, bootstrap: str) -> None:
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.admin = AdminClient(self.settings)

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        [created] = self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
        created.result(PATIENCE)
        ensure_topics(self.settings, {name: TopicSettings(create=False)}, PATIENCE)
        return name

    def config(self, name: str) -> dict[str, str]:
        [answer] = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        return {key: entry.value for key, entry in answer.result(PATIENCE).items()}

    def partitions(self, name: str) -> int:
        [answer] = self.admin.describe_topics(TopicCollection([name])).values()
        return len(answer.result(PATIENCE).partitions)

    def exists(self, name: str) -> bool:
        return name in self.admin.list_topics(timeout=PATIENCE).topics


@pytest.fixture
def topics(broker: SharedBroker) -> Topics:
    return Topics(broker.bootstrap)


def levels(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [(finding.level, finding.why) for finding in findings]


def test_missing_topics_are_created_with_their_settings(topics: Topics) -> None:
    one, other, present = unique("one"), unique("other"), topics.create(unique("present"), 3)
    wanted = {
        one: TopicSettings(),
        present: TopicSettings(partitions=7),
        other: TopicSettings(True, 4, 1, "compact", {"max.message.bytes": "2000000"}),
    }
    assert ensure_topics(topics.settings, wanted, PATIENCE) == [one, other]
    assert [topics.partitions(name) for name in wanted] == [1, 3, 4]
    assert topics.config(one)["cleanup.policy"] == "delete"
    config = topics.config(other)
    assert (config["cleanup.policy"], config["max.message.bytes"]) == ("compact", "2000000")
    assert ensure_topics(topics.settings, wanted, PATIENCE) == []
    assert ensure_topics(topics.settings, {}, PATIENCE) == []


def test_topic_that_must_exist(topics: Topics) -> None:
    required, other = unique("required"), unique("other")
    wanted = {required: TopicSettings(False, 2, 3, "compact"), other: TopicSettings()}
    with pytest.raises(DefiniteError, match=f"topic {required} does not exist") as caught:
        ensure_topics(topics.settings, wanted, PATIENCE)
    command = f"kafka-topics.sh --bootstrap-server {topics.settings['bootstrap.servers']} --create --topic {required}"
    assert f"{command} --partitions 2 --replication-factor 3 --config cleanup.policy=compact;" in caught.value.hint
    assert not topics.exists(other), "none is created"
    [finding] = check_topics(topics.settings, {required: wanted[required]}, PATIENCE)
    assert (finding.level, finding.object, finding.hint) == (Level.ERROR, required, caught.value.hint)


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        (TopicSettings(replication=3), "Set the replication to at most the number of brokers."),
        (TopicSettings(configs={"cleanup.polciy": "compact"}), "Check the settings of the topic."),
    ],
)
def test_settings_that_brokers_reject(topics: Topics, wanted: TopicSettings, hint: str) -> None:
    name = unique("rejected")
    with pytest.raises(DefiniteError, match=f"topic {name} could not be created") as caught:
        ensure_topics(topics.settings, {name: wanted}, PATIENCE)
    assert caught.value.hint == hint
    [finding] = check_topics(topics.settings, {name: wanted}, PATIENCE)
    assert (finding.level, finding.hint) == (Level.ERROR, hint)


@pytest.mark.parametrize(
    "settings",
    [
        TopicSettings(partitions=0),
        TopicSettings(replication=-1),
        TopicSettings(cleanup_policy="compacted"),
        TopicSettings(cleanup_policy="compact", configs={"cleanup.policy": "delete"}),
    ],
)
def test_invalid_settings(settings: TopicSettings) -> None:
    with pytest.raises(UsageError):
        ensure_topics(NOBODY, {"t": settings}, PATIENCE)


def test_broker_that_does_not_answer() -> None:
    with pytest.raises(TransientError, match="topic t could not be described") as caught:
        ensure_topics(NOBODY, {"t": TopicSettings()}, 0.5)
    assert caught.value.hint == "Check that the brokers at 127.0.0.1:1 are running and reachable from this host."
    [finding] = check_topics(NOBODY, {"t": TopicSettings(), "u": TopicSettings()}, 0.5)
    assert (finding.level, finding.object, finding.hint) == (Level.ERROR, "127.0.0.1:1", caught.value.hint)


def test_settings_that_the_client_rejects() -> None:
    for wrong in ({"no.such": "x"}, {"security.protocol": "none"}):
        with pytest.raises(DefiniteError, match="could not be accessed") as caught:
            ensure_topics({**NOBODY, **wrong}, {"t": TopicSettings()})
        assert caught.value.hint == "Check the options of the sink."


# -- positions ---------------------------------------------------------------------------------------------------------


def test_topic_of_positions(topics: Topics) -> None:
    name = unique("positions")
    assert check_topics(topics.settings, {}, PATIENCE, positions=name) == []
    assert not topics.exists(name)
    assert ensure_positions_topic(topics.settings, name, PATIENCE)
    assert topics.partitions(name) == 1
    assert topics.config(name)["cleanup.policy"] == "compact"
    assert not ensure_positions_topic(topics.settings, name, PATIENCE)
    assert check_topics(topics.settings, {}, PATIENCE, positions=name) == []


@pytest.mark.parametrize(
    ("partitions", "policy", "why"),
    [
        (1, "delete", "has cleanup.policy=delete"),
        (1, "compact,delete", "has cleanup.policy=compact,delete"),
        (2, "compact", "has 2 partitions"),
    ],
)
def test_topic_that_would_lose_positions(topics: Topics, partitions: int, policy: str, why: str) -> None:
    name = topics.create(unique("positions"), partitions, cleanup_policy=policy)
    with pytest.raises(DefiniteError, match=f"the topic of positions {name} {why}") as caught:
        ensure_positions_topic(topics.settings, name, PATIENCE)
    assert caught.value.hint
    [finding] = check_topics(topics.settings, {}, PATIENCE, positions=name)
    assert (finding.level, finding.why, finding.hint) == (Level.ERROR, caught.value.message, caught.value.hint)


# -- checks ------------------------------------------------------------------------------------------------------------


def test_nothing_to_report(topics: Topics) -> None:
    name = topics.create(unique("orders"), cleanup_policy="compact")
    wanted = {name: TopicSettings(False, 1), unique("new"): TopicSettings(cleanup_policy="compact")}
    assert check_topics(topics.settings, wanted, PATIENCE, upsert=True) == []


@pytest.mark.parametrize(
    ("policy", "retention", "upsert", "why"),
    [
        ("delete", "86400000", True, "deletes the last message of a key by age or size"),
        ("compact,delete", "86400000", True, "deletes the last message of a key by age or size"),
        ("compact,delete", "-1", True, None),
        ("delete", "-1", True, None),
        ("delete", "86400000", False, None),
        ("compact", "86400000", False, "removes all changes of a key but the last"),
    ],
)
def test_retention(topics: Topics, policy: str, retention: str, upsert: bool, why: str | None) -> None:
    name = topics.create(unique("orders"), cleanup_policy=policy, retention_ms=retention)
    found = check_topics(topics.settings, {name: TopicSettings()}, PATIENCE, upsert=upsert)
    expected = [] if why is None else [(Level.WARNING, f"topic {name} has cleanup.policy={policy} and {why}")]
    assert levels(found) == expected
    wanted = "compact" if upsert else "delete"
    assert all(f"--entity-name {name} --alter --add-config cleanup.policy={wanted}" in one.hint for one in found)


def test_topic_to_be_created_without_compaction(topics: Topics) -> None:
    for wanted, count in ((TopicSettings(), 1), (TopicSettings(cleanup_policy="compact"), 0)):
        found = check_topics(topics.settings, {unique("new"): wanted}, PATIENCE, upsert=True)
        assert [finding.level for finding in found] == [Level.WARNING] * count


def test_size_of_messages_and_number_of_partitions(topics: Topics) -> None:
    name = topics.create(unique("small"), 2, max_message_bytes="1000")
    assert levels(check_topics(topics.settings, {name: TopicSettings(partitions=3)}, PATIENCE)) == [
        (Level.WARNING, f"topic {name} has 2 partitions, not 3"),
        (Level.WARNING, f"topic {name} accepts messages of at most 1000 bytes, but the sink may write 1048576"),
    ]
    assert check_topics(topics.settings, {name: TopicSettings()}, PATIENCE, limit=1000) == []


# -- users without permission ------------------------------------------------------------------------------------------


class User(Topics):
    """A user with permissions."""

    def __init__(self, broker: SharedBroker) -> None:
        super().__init__(broker.bootstrap)
        name, password = PLAIN_USER
        self.name = name
        self.login = {
            "bootstrap.servers": f"127.0.0.1:{broker.doors.sasl_port}",
            "log_level": 0,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(broker.doors.tls / "ca.crt"),
        }

    def grant(self, topic: str, *operations: AclOperation) -> None:
        """Grant permissions, and wait until they are effective."""
        bindings = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{self.name}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for created in self.admin.create_acls(bindings).values():
            created.result(PATIENCE)


@pytest.fixture
def user(guarded_broker: SharedBroker) -> User:
    return User(guarded_broker)


def test_topic_that_the_user_may_not_see(user: User) -> None:
    hidden = user.create(unique("hidden"))
    for name in (hidden, unique("missing")):
        with pytest.raises(DefiniteError, match=f"permission denied for topic {name}") as caught:
            ensure_topics(user.login, {name: TopicSettings()}, PATIENCE)
        assert caught.value.hint == "Grant the user DESCRIBE and WRITE on the topic."
        found = check_topics(user.login, {name: TopicSettings()}, PATIENCE)
        assert levels(found) == [(Level.ERROR, f"permission denied for topic {name}")]


def test_topic_that_the_user_may_not_create(user: User) -> None:
    name = unique("new")
    user.grant(name, AclOperation.WRITE)
    wanted = {name: TopicSettings(cleanup_policy="compact")}

    def findings() -> list[tuple[Level, str]]:
        return levels(check_topics(user.login, wanted, PATIENCE))

    until(lambda: findings() == [(Level.ERROR, f"permission denied to create topic {name}")], "the permission")
    with pytest.raises(DefiniteError, match=f"permission denied to create topic {name}") as caught:
        ensure_topics(user.login, wanted, PATIENCE)
    assert caught.value.hint.startswith("Grant the user CREATE on the topic, or run: kafka-topics.sh")
    user.grant(name, AclOperation.CREATE)
    until(lambda: findings() == [], "the permissions")
    assert ensure_topics(user.login, wanted, PATIENCE) == [name]


def test_topic_that_the_user_may_not_write(user: User) -> None:
    name, positions = user.create(unique("read")), user.create(unique("positions"), cleanup_policy="compact")
    for each in (name, positions):
        user.grant(each, AclOperation.DESCRIBE)
    wanted = {name: TopicSettings()}

    def findings() -> list[tuple[Level, str]]:
        return levels(check_topics(user.login, wanted, PATIENCE, positions=positions))

    expected = [
        (Level.ERROR, f"the user lacks WRITE on topic {name}"),
        (Level.WARNING, f"permission denied for the settings of topic {name}"),
        (Level.ERROR, f"the user lacks WRITE and READ on topic {positions}"),
        (Level.ERROR, f"permission denied for the settings of topic {positions}"),
    ]
    until(lambda: findings() == expected, "the permissions")
    with pytest.raises(DefiniteError, match=f"permission denied for the settings of topic {positions}"):
        ensure_positions_topic(user.login, positions, PATIENCE)
    user.grant(name, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
    user.grant(positions, AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
    until(lambda: findings() == [], "the permissions")


def test_wrong_password(user: User) -> None:
    wrong = {**user.login, "sasl.password": CANARY}
    with pytest.raises(DefiniteError) as caught:
        ensure_topics(wrong, {"t": TopicSettings()}, PATIENCE)
    assert caught.value.hint == "Check the login of the sink."
    [finding] = check_topics(wrong, {"t": TopicSettings()}, PATIENCE)
    assert finding.hint == caught.value.hint
    failure: BaseException | None = caught.value
    assert isinstance(failure, PenstockError)
    while failure is not None:
        assert CANARY not in str(failure)
        failure = failure.__cause__ or failure.__context__


def test_no_topic_is_created_by_accident(user: User) -> None:
    """The broker creates topics on demand: a topic that must exist, or that is checked, must still be missing."""
    required, checked = unique("required"), unique("checked")
    with pytest.raises(DefiniteError, match="does not exist"):
        ensure_topics(user.settings, {required: TopicSettings(create=False)}, PATIENCE)
    check_topics(user.settings, {checked: TopicSettings()}, PATIENCE, positions=checked + "-positions")
    existing = set(user.admin.list_topics(timeout=PATIENCE).topics)
    assert not {required, checked, checked + "-positions"} & existing
    name = unique("positions")
    assert ensure_positions_topic(user.settings, name, PATIENCE)
    assert user.config(name)["cleanup.policy"] == "compact"
