"""The interface between orchestrators and Spark, without Spark: an ingestion's spec, result and job process."""
