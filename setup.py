"""Which packages there are: all that have an `__init__.py`. Everything else is in setup.cfg."""

from setuptools import find_packages, setup

# experiments/ and results/ stand beside the package so that a reader finds them first; installed,
# they are within, of results/ only the tables of runs.
EXPERIMENTS = find_packages(include=["experiments", "experiments.*"])

setup(
    packages=find_packages(include=["memobench", "memobench.*"])
    + [f"memobench.{package}" for package in EXPERIMENTS]
    + ["memobench.results"],
    package_dir={
        "memobench": "memobench",
        "memobench.experiments": "experiments",
        "memobench.results": "results",
    },
)
