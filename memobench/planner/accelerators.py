"""What accelerators take for a step: a model from counts of compiled programs.

Programs are bound by memory traffic and by the starts of their kernels, not by arithmetic: what a
step holds it writes once and reads a few times. How often, how many kernels and how much padding
was counted in the programs of `experiments/performance/accelerators.py`. Which share of the
bandwidth these reach was measured on an H100 by `experiments/performance/first_light.py`.
"""

from __future__ import annotations

import dataclasses

from memobench.core.module import Module, count_parameters
from memobench.core.run import Run


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Figures of a device, by the makers' data sheets, counts and one measurement, `reached`.

    bandwidth: bytes per second. step_seconds: the least that a step takes, starting its kernels.
    traffic: how often the bytes that a step holds are moved. reached: the share of the bandwidth
    that steps reach. vector_width: places to which the last axis of arrays is padded.
    """

    bandwidth: float
    step_seconds: float
    traffic: float
    reached: float = 1.0
    vector_width: int = 1


# The geometric mean over eleven packs on an H100, for bytes as they are counted here; each pack is
# within 1.8 times of it. An H200 is taken to reach the same share; of it whole sweeps are known,
# whose small packs took up to three times as long. No TPU was measured.
_REACHED = 0.45
# 60 kernels of 2 µs; a TPU's parts start within a program.
DEVICES = {
    "NVIDIA H100": Accelerator(3.35e12, 1.2e-4, 6.5, _REACHED),
    "NVIDIA H200": Accelerator(4.8e12, 1.2e-4, 6.5, _REACHED),
    "TPU v5 lite": Accelerator(0.819e12, 1e-4, 11.0, vector_width=128),
}
# By which packs are chosen on any device of a platform.
TYPICAL = {"gpu": "NVIDIA H100", "tpu": "TPU v5 lite"}


def nearest(device: str, platform: str) -> str:
    """The name among DEVICES that a device's begins with, or that of its platform.

    >>> nearest("NVIDIA H200 141GB", "gpu"), nearest("NVIDIA A100", "gpu")
    ('NVIDIA H200', 'NVIDIA H100')
    """
    typical = TYPICAL.get(platform, TYPICAL["gpu"])
    return next((name for name in DEVICES if device.startswith(name)), typical)


def of(platform: str) -> Accelerator:
    """The figures by which packs are chosen on a platform."""
    return DEVICES[nearest("", platform)]


def bytes_held(module: Module, run: Run, device: Accelerator) -> float:
    """Of a step of one model: its weights and what its examples hold."""
    _, of_examples = module.padding(device.vector_width, _shares_rows(run))
    of_weights = bytes_of_weights(module, run, device)
    return of_weights + 4.0 * of_examples * floats_held(module, run)


def bytes_of_weights(module: Module, run: Run, device: Accelerator) -> float:
    """Of one model: weights, gradient and Adam moments."""
    n_params, _ = count_parameters(module, run.task.context_length)
    of_weights, _ = module.padding(device.vector_width, _shares_rows(run))
    return 4.0 * of_weights * 6.0 * n_params * run.method.starts


def floats_held(module: Module, run: Run) -> float:
    """Numbers that the examples of a step of one model hold at a time."""
    n_rows = run.method.rows_per_step(run) * run.method.starts
    return n_rows * module.floats_held(_shares_rows(run))


def _shares_rows(run: Run) -> bool:
    return run.method.batch_size is None and run.task.shares_inputs


def seconds_of_traffic(module: Module, run: Run, device: Accelerator) -> float:
    """Seconds that a step's numbers of one model take to be moved."""
    bytes_moved = 4.0 * device.traffic * floats_held(module, run)
    return bytes_moved / (device.reached * device.bandwidth)
