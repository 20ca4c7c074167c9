"""Assets, queues and sensors declared in YAML: the components of `dg`."""
