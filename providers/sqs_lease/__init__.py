"""SQS leases for orchestrators: receive, keep invisible while the work runs, delete on success, release on failure."""
