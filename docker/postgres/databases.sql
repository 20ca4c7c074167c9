-- Read when PostgreSQL makes its data: a database for each user of the server. The first, airflow, is POSTGRES_DB.
CREATE DATABASE dagster;
-- Where the DAG queue_to_postgres puts its table.
CREATE DATABASE orders;
