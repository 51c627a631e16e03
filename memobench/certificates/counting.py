"""Counts of what weights know, by plain code that shares as little as possible with training.

The task's instance is drawn from its seed and the architecture's module is applied to one example
after another: no engine, no padding, no packs, no tables of all sequences. Weights are float32,
arithmetic is in double precision, so that every machine counts alike. Outputs are judged in NumPy.

Shape letters: T examples, B of a block, C outputs.
"""

import functools
import math
import pathlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from memobench import certificates
from memobench.certificates import Certificate
from memobench.common import settings
from memobench.common.errors import escape_unprintable, name_place, require
from memobench.core.module import RUNS_BRIEFLY, Module
from memobench.numerics import lookup, metrics, precision

# How weights are stored. Integers share a scale with the others of their block, which is counted:
# of matrices as narrow as these models', a scale for every row would take more than the weights.
FORMATS = ("float32", *precision.COARSE)
# Examples at once, and floats that they keep.
_MOST_EXAMPLES, _MOST_FLOATS = 4096, 2**24
_NOTHING: dict[str, Any] = dict.fromkeys(("known", "accuracy", "memorized", "bits", "loss"))
# Outputs of all examples, which are held to be judged: 2 GB.
_MOST_OUTPUTS = 2**28


def certify(path: certificates.Path, follow: bool = True) -> dict[str, Any]:
    """A row of plain values that say what the weights of a file know, counted and not believed.

    Args:
      path: of the file.
      follow: whether it may be a symbolic link.

    Returns:
      file, digest, by, seed and first as in the file; the columns of task and architecture;
      n_params, n_examples; and for the weights as they are: bytes, known (examples), accuracy,
      memorized, bits, loss (nats), bits_per_parameter, bits_per_byte. The same, with a suffix, for
      the weights rounded: known_bfloat16, .., bits_per_byte_int4. A measure that the task does not
      have is None, and so is what rounded weights know if their outputs are not finite.

    Raises:
      UserError: in one line that begins with the path, for a file that is not a certificate.
    """
    return row(path, *certificates.read(path, follow))


def row(path: certificates.Path, certificate: Certificate, digest: str) -> dict[str, Any]:
    """The same of a file that was read."""
    with name_place(escape_unprintable(path)):
        counted = count(certificate)
    return {"file": escape_unprintable(pathlib.Path(path).name), "digest": digest, **counted}


@settings.pin
def count(certificate: Certificate, formats: Iterable[str] = FORMATS) -> dict[str, Any]:
    """The same of a certificate that is not in a file.

    Args:
      certificate: of the weights.
      formats: in which weights are stored; float32 is their own.

    Raises:
      UserError: outputs are too many to be held, or those of float32 not finite.
    """
    task, architecture = certificate.task, certificate.architecture
    n_examples = certificate.first or task.n_examples
    n_outputs = n_examples * max(map(math.prod, task.output_shapes), default=task.n_choices or 1)
    require(n_outputs <= _MOST_OUTPUTS, f"it has too many outputs to be counted: {n_outputs:,}")
    counted: dict[str, Any] = {
        "by": certificate.by,
        "seed": certificate.seed,
        "first": certificate.first,
        "task": task.name,
        **task.shared_cells(),
        **task.cells(),
        "architecture": architecture.name,
        **architecture.shared_cells(),
        **architecture.cells(),
        "n_params": certificate.n_params,
        "n_examples": n_examples,
    }
    data, variables = jax.tree.map(np.asarray, (task.sample(), certificate.variables()))
    for kind in formats:
        suffix = "" if kind == "float32" else f"_{kind}"
        params = jax.tree.map(lambda x, kind=kind: precision.round_to(x, kind), variables["params"])
        held = {**variables, "params": params}
        n_bytes = sum(precision.n_bytes(x.size, kind) for x in certificate.params.values())
        output_TxC = outputs(certificate, held, data)
        is_finite = np.isfinite(output_TxC).all()
        require(is_finite or kind != "float32", "its outputs are not finite")
        # What float32 holds may be infinite in bfloat16.
        measured = _measures(certificate, data, output_TxC) if is_finite else _NOTHING
        bits, n_params = measured["bits"], counted["n_params"]
        measured = measured | {
            "bytes": n_bytes,
            "bits_per_parameter": None if bits is None else bits / n_params,
            "bits_per_byte": None if bits is None else bits / n_bytes,
        }
        counted |= {f"{name}{suffix}": value for name, value in measured.items()}
    return counted


def _measures(certificate: Certificate, data: Any, output_TxC: np.ndarray) -> dict[str, Any]:
    """known, accuracy, memorized, bits and loss of outputs."""
    task: Any = certificate.task
    n_examples = certificate.first or certificate.task.n_examples
    if certificate.first:
        data = task.part(data, n_examples)
    loss_T, correct_T = task.judge(data, output_TxC)
    if task.is_even:
        loss, accuracy = loss_T.mean(), correct_T.mean()
    else:
        prior_T = task.prior(data)
        # Sequences that never occur may have an infinite divergence.
        loss = prior_T @ np.where(prior_T > 0, loss_T, 0.0)
        accuracy = prior_T @ correct_T
    n_predicted, chance = correct_T.size, task.chance
    measured = {
        "accuracy": accuracy,
        "memorized": metrics.correct_for_chance(accuracy, n_predicted, chance),
        "bits": metrics.memorized_bits(loss, n_predicted, task.n_choices),
        "loss": loss,
    }
    known = {"known": int(correct_T.sum())} if "accuracy" in task.measures else {"known": None}
    return known | {
        name: float(x) if name in task.measures else None for name, x in measured.items()
    }


def outputs(certificate: Certificate, variables: Any, data: Any) -> np.ndarray:
    """output_TxC, float64, of the examples, block by block."""
    module, task = certificate.module(), certificate.task
    n_examples = certificate.first or task.n_examples
    most = int(_MOST_FLOATS / max(module.activations(), 1))
    n_blocks = math.ceil(n_examples / min(max(most, 1), _MOST_EXAMPLES))
    block = math.ceil(n_examples / n_blocks)
    double, highest = jax.enable_x64(True), jax.default_matmul_precision("highest")
    with double, highest, lookup.traced_for_here():
        variables, data = precision.cast((variables, data))
        forward = _forward(module, task.signature())
        found = []
        for start in range(0, n_examples, block):
            # The last block repeats its last example, so that all have one shape.
            example_B = np.minimum(np.arange(start, start + block), n_examples - 1)
            found.append(np.asarray(forward(variables, data, example_B.astype(np.int32))))
    return np.concatenate(found)[:n_examples]


@functools.lru_cache(maxsize=64)
def _forward(module: Module, task: Any) -> Any:
    def forward(variables: Any, data: Any, example_B: jax.Array) -> jax.Array:
        def one(example: jax.Array) -> Any:
            return module.apply(variables, *task.inputs(data, example))

        return jax.vmap(one)(example_B)

    return jax.jit(forward, compiler_options=RUNS_BRIEFLY)
