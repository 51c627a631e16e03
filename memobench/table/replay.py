"""The trials of a search, checked: each must follow from the outcomes of those before it."""

import math
from collections.abc import Sequence
from typing import Any

from memobench.common.errors import UserError, name_place, require, shown
from memobench.core.columns import or_null, real, whole
from memobench.methods import bisection
from memobench.methods.bisection import Proposal, Trial
from memobench.methods.search import Search
from memobench.table.consistency import REPEATED, Row, check_derived, check_loss

_LOSS = or_null(real(-1e-5))
_TRIAL = (whole(1), whole(1), real(0), whole(0), whole(0), _LOSS)


def check(search: Search, task: Any, row: Row) -> None:
    """Raises UserError unless such a search makes these trials and the row follows from them."""
    n_examples = task.n_examples
    require(row["trials"], "trials are missing; put them in")
    trials = [trial_of(search, i, values) for i, values in enumerate(row["trials"])]
    replay(search, n_examples, trials)
    check_derived(row, bisection.columns(n_examples, trials, task.n_choices), REPEATED)
    accuracy, loss = bisection.best_of_whole(trials, n_examples)
    if not math.isfinite(loss):
        require(row["status"] == "diverged", "status='ok' but no trial of all examples has a loss")
        return
    check_derived(row, {"status": "ok", "accuracy": accuracy, "loss": loss}, REPEATED)


def trial_of(search: Search, number: int, values: Any) -> Trial:
    """A trial from its list. Raises UserError for counts that no such search has."""
    with name_place(f"trials[{number}]={shown(values)}"):
        require(
            isinstance(values, list)
            and len(values) == 6
            and all(domain.holds(x) for domain, x in zip(_TRIAL, values, strict=True)),
            "is not [steps, n_examples, factor, known, last_known, loss]; fix it",
        )
        trial = Trial(*values)
        require(
            trial.last_known <= trial.known <= trial.n_examples,
            "knows more examples than there are, or more at the end than at its best; fix it",
        )
        require(
            search.protocol == "exact" or trial.known == trial.last_known,
            "knew more than at the end, which only the exact protocol can tell; fix it",
        )
        if trial.loss is None:
            require(trial.last_known == 0, "has no loss but knows examples; fix it")
            return trial._replace(loss=math.nan)
        check_loss(trial.loss, trial.last_known / trial.n_examples, math.log(2))
        return trial


def replay(search: Search, n_examples: int, trials: Sequence[Trial]) -> None:
    """Proposes the trials of a search again, each round from the outcomes of earlier ones."""
    made: list[Trial] = []
    while proposals := bisection.next_trials(search, n_examples, made):
        made += _round(proposals, trials[len(made) :])
    require(
        len(made) == len(trials),
        f"trials: the search was done after {len(made)} of {len(trials)}; leave the others out",
    )


def _round(proposals: Sequence[Proposal], left: Sequence[Trial]) -> list[Trial]:
    """The trials of a round; one that was proposed twice may be listed once."""
    made: list[Trial] = []
    known: set[tuple] = set()
    for proposal in proposals:
        if len(made) < len(left) and left[len(made)][:3] == proposal:
            made.append(left[len(made)])
            known.add(proposal)
        elif proposal not in known:
            steps, size, factor = proposal
            raise UserError(
                f"trials: the search would have tried {size} examples for {steps} steps, rates "
                f"times {factor:g}, and did not; submit searches as they came out"
            )
    return made
