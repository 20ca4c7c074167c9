"""The page *SQS leases* of Airflow's user interface: static files, which read Airflow's REST API in the browser."""
