"""Rows, shards and published tables."""
