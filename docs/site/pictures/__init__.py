"""The pictures of docs/: each is drawn from a run of the package's own code in virtual time."""
