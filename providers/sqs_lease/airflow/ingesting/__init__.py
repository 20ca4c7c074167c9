"""Ingestion by Spark as a task: the job's process, the files between it and the task, and what ends it early."""
