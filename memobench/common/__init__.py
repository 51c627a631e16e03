"""Errors, settings, files and JSON: the ground, which needs nothing else of memobench."""
