"""Receiving a batch: in the triggerer, or in a worker that does not defer."""
