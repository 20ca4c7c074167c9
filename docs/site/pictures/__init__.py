"""The pictures of docs/: drawn from runs of the package in virtual time, and that of the peers from its results."""
