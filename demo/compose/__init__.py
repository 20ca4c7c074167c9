"""The commands of compose.yaml beside the servers: secrets, queues, test messages, and their outcomes."""
