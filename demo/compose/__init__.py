"""What compose.yaml runs beside the servers: secrets, queues, test messages, and a look at what became of them."""
