"""`python -m memobench` is the `memobench` command."""

from memobench import cli

cli.main()
