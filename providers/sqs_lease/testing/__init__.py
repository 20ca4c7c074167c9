"""Public helpers for tests: an in-memory SQS with the real service's semantics, on a virtual clock."""
