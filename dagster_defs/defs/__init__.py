"""The examples, one file or folder each; Dagster finds them by itself."""
