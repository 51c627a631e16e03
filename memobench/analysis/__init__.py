"""Means over seeds, intervals, and theorems applied to rows."""
