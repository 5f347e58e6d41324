"""Partitioning: layouts and shards of a model on a topology; nothing yet."""
