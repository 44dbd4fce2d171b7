-- A replacement of Debezium's Postgres connector with topic.prefix=shop and Confluent's Avro converter.

CREATE SOURCE shop FROM POSTGRES CONNECTION 'postgresql://penstock@db.example.com/shop';

CREATE SINK cdc FROM shop INTO KAFKA
  BROKER 'k1:9092' TOPIC PREFIX 'shop.'
  FORMAT AVRO USING SCHEMA REGISTRY 'http://registry:8081'
  ENVELOPE DEBEZIUM;
