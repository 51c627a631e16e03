"""The results table: its columns, the shards it is read from, means over seeds, and checks."""
