"""The decision, from the states of the work, which messages are deleted and which are given back."""
