"""Weights that a proof promises, made and checked.

A construction solves for the parameters of the project's own modules in float64. Its weights are
judged as trained ones are: by the module's forward pass on all examples of the task.

Shape letters: T examples of the task, A of them aimed at (those the weights are made for), C
outputs.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from memobench.common.errors import UserError, require, short_repr, suggest
from memobench.constructions import checking, evaluation, linear
from memobench.constructions.problem import Constructed, Problem
from memobench.core import cells as runs
from memobench.core import module as models
from memobench.core.run import Pack, PackResult, Run
from memobench.numerics import precision
from memobench.store import measures

_log = logging.getLogger("memobench")

# Scales that are tried, to name one that works where the chosen one loses rank.
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


def construct(run: Run) -> Constructed:
    """The weights that the theorem of the run's method promises, at their true size.

    Raises:
      UserError: the theorem is unknown, says nothing about this architecture or this many examples,
        or its features lose rank in float64 at the chosen scale; the message names one that works.

    >>> from memobench.constructions.dana2025 import Dana2025
    >>> from memobench.models.transformer import AttentionOnly
    >>> from memobench.tasks.associations import Associations
    >>> full = AttentionOnly(d_model=2, d_head=2, n_heads=12, heads="full")
    >>> made = construct(Run(task=Associations(vocab_size=5), architecture=full, method=Dana2025()))
    >>> made.certificate["feature_rank"], made.params["unembedding"].shape
    (25, (5, 2))
    """
    method, lost = _method(run), None
    method.check_model(run)
    scales = method.scales if method.scale is None and method.scales else (method.scale,)
    for scale in scales:
        try:
            made = _construct_at(run, scale)
        except linear.NotExact as error:
            lost = lost or error
            continue
        return dataclasses.replace(made, certificate={**made.certificate, "scale_used": scale})
    assert lost is not None
    at = f" at scale={method.scale:g}" if method.scale else ""
    raise UserError(
        f"theorem={method.name!r}{at}, seed={run.seed}: {lost}; {_advice(run, lost)}"
    ) from lost


def _construct_at(run: Run, scale: float | None) -> Constructed:
    """The weights at a scale."""
    method = _method(run)
    if scale != method.scale:
        method = method.replace(scale=scale)
    return checking.call_construct(_problem(dataclasses.replace(run, method=method)))


def _advice(run: Run, lost: linear.NotExact) -> str:
    method = _method(run)
    for scale in SCALES if method.scales else ():
        try:
            _construct_at(run, scale)
        except UserError:
            continue
        return f"scale={scale:g} works"
    tried = f"no scale from {SCALES[0]:g} to {SCALES[-1]:g} does; " if method.scales else ""
    finer = "" if method.weights == "float64" else ", take finer weights"
    return f"{tried}lower n_aimed to {lost.usable}{finer} or set solve='least_squares'"


def construct_pack(pack: Pack, on_steps: Callable[[int], None] = lambda _: None) -> PackResult:
    """Constructs the weights of every run of a pack and judges them, one after another.

    Returns:
      A PackResult whose `columns` hold the construction's own certificate, and:
      aimed_accuracy, the share known of the examples aimed at; aimed_loss (nats), by their prior;
      margin: their smallest, as a share of the largest output; gamma: by how much their loss
      exceeds the sequence encoder's; promises, the theorem's number; largest_weight; stored_bits
      of one weight; seconds to construct and judge. A run that cannot be made is named in a warning
      and has neither measures nor certificate.
      `variables` is empty: `construct` gives them at their true size.
    """
    judged: list[dict[str, Any]] = []
    for run in pack.runs:
        if judged:  # What is all done is kept, whoever stops it.
            on_steps(1)
        since = time.perf_counter()
        try:
            judged.append(_judge_run(run, construct(run)))
        except UserError as error:
            _log.warning("run %s cannot be made: %s", run.run_id, error)
            judged.append(dict.fromkeys(_MEASURES, math.nan))
        judged[-1]["seconds"] = time.perf_counter() - since
    accuracy_R, loss_R = (np.array([row.pop(name) for row in judged]) for name in _MEASURES)
    return PackResult.of_ends(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        compile_seconds=0.0,
        variables={},
        columns=tuple(judged),
    )


_MEASURES = ("accuracy", "loss")


def _judge_run(run: Run, made: Constructed) -> dict[str, Any]:
    """Columns of the run's row: accuracy, loss and certificate."""
    task, data = run.task, run.task.sample()
    prior_T, aimed_A = task.prior(data), aimed_examples(run)
    _, output_TxC, scale = _load_weights(run, made)
    judged = evaluation.judge(task, data, output_TxC * scale)
    of_aimed_A = prior_T[aimed_A] / max(prior_T[aimed_A].sum(), 1e-300)
    margin = float(judged.margin_T[aimed_A].min(initial=np.inf))
    knows = len(aimed_A) and "accuracy" in task.measures
    aimed_loss = float(of_aimed_A @ judged.loss_T[aimed_A])
    encoder_loss = made.certificate.get("encoder_loss")
    return {
        "accuracy": float(np.average(judged.correct_T, weights=prior_T)),
        "loss": float(prior_T @ judged.loss_T),
        **made.certificate,
        **measures.values(task, data, output_TxC * scale),
        "aimed_accuracy": float(judged.correct_T[aimed_A].mean()) if knows else None,
        "aimed_loss": aimed_loss,
        "gamma": None if encoder_loss is None else aimed_loss - encoder_loss,
        "margin": margin if np.isfinite(margin) else None,
        "promises": promises(run),
        "largest_weight": float(max(np.abs(x).max(initial=0) for x in made.params.values())),
        "stored_bits": precision.BITS_PER_WEIGHT[_method(run).weights],
    }


def _load_weights(run: Run, made: Constructed) -> tuple[Any, np.ndarray, float]:
    """Parameters rounded as stored, output_TxC, and the scale at which logits are judged."""
    task, method = run.task, _method(run)
    data = task.sample()

    def outputs(params: dict[str, np.ndarray]) -> np.ndarray:
        double = method.weights == "float64"
        found_TxC = measures.outputs(run.module(), _variables(run, params), task, data, double)
        # Tokens that are no answers compete with none.
        return found_TxC[..., : getattr(task, "n_outputs", None)]

    held = {name: precision.round_to(x, method.weights) for name, x in made.params.items()}
    output_TxC = outputs(held)
    require(np.isfinite(output_TxC).all(), f"theorem={method.name!r}: outputs are not finite")
    if not made.read_out:
        return held, output_TxC, 1.0
    doubled_TxC = outputs(_scale_read_out(held, made, 2.0))
    tolerance = 1e-5 * np.abs(output_TxC).max(initial=0)
    require(
        np.allclose(doubled_TxC, 2 * output_TxC, rtol=0, atol=tolerance),
        f"theorem={method.name!r}: twice the parameters that read_out={made.read_out} names are "
        "not twice the logits; name those of which this is true, or none",
    )
    k = evaluation.doublings(task, data, output_TxC, task.prior(data))
    return held, output_TxC, 2.0**k


def _scale_read_out(
    params: dict[str, np.ndarray], made: Constructed, scale: float
) -> dict[str, Any]:
    return params | {name: params[name] * scale for name in made.read_out}


def _variables(run: Run, params: dict[str, np.ndarray]) -> dict[str, Any]:
    nested = traverse_util.unflatten_dict(params, sep="/")
    return {"params": nested, "constants": _constants(run)}


def initial_variables(pack: Pack) -> Any:
    """Variables of every run, made by the construction from which its training starts: axis R.

    Float32, padded and stacked. Where it aims at all examples, logits have the scale at which it is
    judged.
    """
    target = models.shapes(pack.module, pack.runs[0].task.context_length)
    methods: list[Any] = [run.method for run in pack.runs]
    made = (
        judged_variables(dataclasses.replace(run, method=method.start))
        for run, method in zip(pack.runs, methods, strict=True)
    )
    return models.stack(models.pad_to(variables, target) for variables in made)


def judged_variables(run: Run) -> Any:
    """Variables rounded as stored, with logits scaled if all examples are aimed at.

    Otherwise the examples not aimed at decide the best scale, which is then often close to zero.
    """
    made = construct(run)
    params, _, scale = _load_weights(run, made)
    whole = len(aimed_examples(run)) == run.task.n_examples
    return _variables(run, _scale_read_out(params, made, scale) if whole else params)


def aimed_examples(run: Run) -> np.ndarray:
    """aimed_A: the indices of the examples that the weights are made for.

    The most frequent ones; ties are broken at random by the task's seed.
    """
    task, n_aimed = run.task, _method(run).n_aimed
    if n_aimed is None:
        return np.arange(task.n_examples)
    order_T = np.random.default_rng([task.seed, 1]).permutation(task.n_examples)
    prior_T = task.prior(task.sample())
    return order_T[np.argsort(-prior_T[order_T], kind="stable")][:n_aimed]


def _problem(run: Run) -> Problem:
    task: Any = run.task
    data, aimed_A = jax.tree.map(np.asarray, task.sample()), aimed_examples(run)
    return Problem(
        run=run,
        module=run.module(),
        constants=_constants(run),
        examples=task.to_construct(data, aimed_A),
        rng=np.random.default_rng([run.seed, 0]),
    )


def promises(run: Run) -> int | None:
    """The number of examples that the theorem promises; None where it says nothing."""
    bound, sizes = _method(run).bound, runs.cells(run)
    try:
        if not bound.applies(sizes):
            return None
        value = float(bound.value(sizes))
    except KeyError as error:
        name = str(error.args[0])
        raise UserError(
            f"theorem {bound.name!r} reads {name!r}, no size of a run{suggest(name, sizes)}"
        ) from error
    require(
        0 <= value < math.inf,
        f"theorem {bound.name!r}: its value is {value:g} at these sizes; give a number of examples",
    )
    return int(value)


def _method(run: Run) -> Any:
    method: Any = run.method
    is_one = callable(getattr(method, "construct", None))
    require(is_one, f"method={short_repr(method.name)} is not a construction. Give a run of one")
    return method


def _constants(run: Run) -> dict[str, np.ndarray]:
    return models.constants_of(run.module(), run.task.context_length)
