"""Work on whole queues: messages moved out of a dead-letter queue, and how deep a queue is."""
