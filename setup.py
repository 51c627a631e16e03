"""Which packages there are: all that have an `__init__.py`. Everything else is in setup.cfg."""

from setuptools import find_packages, setup

# experiments/ stands beside the package so that a reader finds it first; installed, it is within.
EXPERIMENTS = find_packages(include=["experiments", "experiments.*"])

setup(
    packages=find_packages(include=["memobench", "memobench.*"])
    + [f"memobench.{package}" for package in EXPERIMENTS],
    package_dir={"memobench": "memobench", "memobench.experiments": "experiments"},
)
