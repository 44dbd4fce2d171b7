-- One stream for all tables: each message is a transaction, with all its changes. One partition keeps the commit order.

CREATE SOURCE shop FROM POSTGRES CONNECTION 'postgresql://penstock@db.example.com/shop';

CREATE SINK firehose FROM shop INTO KAFKA
  BROKER 'k1:9092' TOPIC 'shop.transactions'
  FORMAT JSON
  ENVELOPE TRANSACTIONS
  WITH (partitions = 1);
