"""Which messages are deleted and which go back, decided from the states of the work."""
