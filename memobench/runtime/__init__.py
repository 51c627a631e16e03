"""The runtime: finds the runs that are missing, trains them, and writes their shards."""
