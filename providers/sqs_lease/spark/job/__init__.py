"""The entry point for orchestrators: a process that ingests one batch, manifest in, result out."""
