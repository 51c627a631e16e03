"""Groups of runs of experiments on blocks, and claims that compare two of them."""

import math
from collections.abc import Mapping
from typing import Any

from memobench.claims import Claim, Region
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.blocks import claims
from memobench.experiments.blocks.figure import Groups

BUDGETS = {"quick": 256, "full": 1024}
EQUAL: Region = (1 / 1.1, 1.1)
# A tie is neither.
MORE: Region = (math.nextafter(1, 2), math.inf)
LESS: Region = (0.0, math.nextafter(1, 0))
RELATIONS = {MORE: "more than", LESS: "less than"}
EXPECTED = "expected; nothing is published about facts memorized"


def experiment(
    name: str,
    title: str,
    presets: Mapping[str, claims.Groups],
    measures: tuple[claims.Measure, ...],
    *compare: tuple[Any, ...],
    **about: Any,
) -> Experiment:
    """An experiment on groups; `compare` has the arguments of `claim_ratio` after the groups."""
    names = dict.fromkeys(group for groups in presets.values() for group in groups)
    groups = {x: tuple(run for of in presets.values() for run in of.get(x, ())) for x in names}
    runs: dict[str, tuple[Run, ...]] = {
        preset: tuple(dict.fromkeys(run for of_group in of.values() for run in of_group))
        for preset, of in presets.items()
    }
    return Experiment(
        name=f"blocks/{name}",
        title=title,
        presets=runs,
        figure=Groups(groups=groups, measures=measures),
        claims=tuple(claim_ratio(groups, *each) for each in compare),
        **about,
    )


def claim_ratio(
    groups: claims.Groups,
    first: str,
    region: Region,
    second: str,
    measure: claims.Measure,
    source: str = EXPECTED,
    made_for: str = "",
) -> Claim:
    """The claim that the ratio of a group to another lies in a region."""
    relation = RELATIONS.get(region, f"at most {region[1]:.2g} times")
    said = f"{relation} {second}"
    if region == EQUAL:
        said = f"as much as {second}, within a tenth"
    return Claim(
        name=f"{first} {said} ({measure.name})",
        statement=f"In {measure.name} {first} has {said}.",
        source=source,
        value=1 if region == EQUAL else None,
        test=claims.compare_best(groups, first, second, region, measure),
        made_for=made_for,
    )
