"""The selection of tests here: native Delta and Iceberg only on a Spark that their jars support."""

from __future__ import annotations

import pyspark

from sqs_lease.spark.sinks.jars import TESTED

# On another Spark, `test_table_formats` starts an environment that has the right one, and runs them there.
collect_ignore = [] if pyspark.__version__.rpartition(".")[0] in TESTED else ["table_formats"]
