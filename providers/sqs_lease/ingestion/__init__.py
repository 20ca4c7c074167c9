"""What orchestrators and Spark agree on, without Spark: spec and result of an ingestion, the process of its job."""
