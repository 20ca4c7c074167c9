"""Ingestion by Spark as a task: the files between it and its job, and the job where a cluster has it."""
