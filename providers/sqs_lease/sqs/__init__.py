"""Access to the SQS API: one transport protocol, its implementations, error classification and receiving."""
