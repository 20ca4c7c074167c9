"""Airflow: the sensor, the keeper operator and the context manager that joins them."""
