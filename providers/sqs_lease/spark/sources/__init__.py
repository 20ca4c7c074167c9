"""Sources: what a message body is, and the protocol behind which that stands."""
