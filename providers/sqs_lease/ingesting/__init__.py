"""What each orchestrator needs that has a batch ingested by a process of its own; nothing here imports Spark."""
