"""The demo: flights from a queue into a Delta table, on real processes of this machine."""
