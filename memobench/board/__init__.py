"""The standard board: families, entries, submissions."""
