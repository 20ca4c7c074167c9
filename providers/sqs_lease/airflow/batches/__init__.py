"""The batches of a watcher, from their event until the run that it started has settled them."""
