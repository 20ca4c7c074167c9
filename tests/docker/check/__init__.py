"""`make docker-check`: builds the image and runs the services of compose.yaml from it, without a container daemon."""
