"""Requests to Airflow beyond its public interface: all of them are here, pinned by tests to one minor version."""
