"""Runs that messages start: the trigger in an asset's watcher, and the first task of such a run."""
