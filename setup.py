"""Which packages there are: all that have an `__init__.py`. Everything else is in setup.cfg."""

import sys

from setuptools import find_packages, setup

PACKAGES = find_packages(include=["memobench", "memobench.*"])
# experiments/ and results/ stand beside the package so that a reader finds them first; installed,
# they are within, of results/ only the tables of runs.
EXPERIMENTS = [f"memobench.{x}" for x in find_packages(include=["experiments", "experiments.*"])]
INSTALLED = {
    "memobench": "memobench",
    "memobench.experiments": "experiments",
    "memobench.results": "results",
}

if "editable_wheel" in sys.argv:
    # Of folders elsewhere setuptools makes a finder, which comes after sys.path: beside a clone
    # named memobench Python would take the clone for the package. memobench finds both itself.
    setup(packages=PACKAGES, package_dir={"": "."})
else:
    setup(packages=[*PACKAGES, *EXPERIMENTS, "memobench.results"], package_dir=INSTALLED)
