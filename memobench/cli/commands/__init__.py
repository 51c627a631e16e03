"""The commands of `memobench`, one file each, found by its name: see `memobench/cli/command.py`."""
