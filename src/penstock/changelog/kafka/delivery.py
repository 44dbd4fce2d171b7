"""What the brokers say of a message that was sent."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message

__all__ = ["Delivery"]


class Delivery:
    """Told once a message was delivered, or was not; give it to `produce`, then `flush`."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._offset: int | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Note it."""
        self._error, self._offset = error, message.offset()

    def offset(self) -> int:
        """Return where it is, or raise why it is not there."""
        if self._error is not None:
            raise KafkaException(self._error)
        if self._offset is None:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
        return self._offset
