"""What is asked of Airflow beyond its public interface: all of it is here, pinned by tests to one minor version."""
