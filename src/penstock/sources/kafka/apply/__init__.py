"""Topics in Spark: how ranges of messages become changes of tables.

::

    messages ─▶ changes ─┬─▶ tail     a table at a position: base table, overlaid with messages
                         └─▶ tables   apply: rejected messages to the quarantine, the rest into the base table

`tables` also implements `penstock.tables.message_tables` with these. This package is above `penstock.tables` and
`penstock.spark`; the rest of the Kafka source does not import it.
"""
