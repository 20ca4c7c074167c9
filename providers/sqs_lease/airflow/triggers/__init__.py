"""The triggers of the lease: they receive, keep and watch in the triggerer."""
