"""What needs nothing else of memobench: errors, settings, files and JSON."""
