"""A batch as a file: its messages with their bodies, strictly read."""
