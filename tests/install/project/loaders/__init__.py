"""Somebody's own loaders: they were here first."""

BATCH_SIZE = 2
