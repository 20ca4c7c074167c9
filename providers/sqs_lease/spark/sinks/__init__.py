"""Sinks: the tables that messages end in, and the protocols behind which they stand."""
