"""Specs, columns, runs, and the contracts of every kind."""
