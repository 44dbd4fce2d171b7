#!/bin/sh
# Runs once, when the example's Postgres is created: a role that may capture the database, and a table.
set -eu
psql --set ON_ERROR_STOP=1 --set password="$(cat /run/secrets/penstock_password)" --username postgres --dbname shop <<'SQL'
CREATE ROLE shop_owner NOLOGIN;
CREATE ROLE penstock LOGIN REPLICATION PASSWORD :'password';
GRANT shop_owner TO penstock;
GRANT CREATE ON DATABASE shop TO penstock;
CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text NOT NULL, total numeric(12, 2) NOT NULL);
ALTER TABLE public.orders OWNER TO shop_owner;
INSERT INTO public.orders (status, total) VALUES ('paid', 12.50), ('open', 7.00);
SQL
