"""A device that cannot be used, by what JAX says of it."""

import logging

import jax
import pytest

import memobench
from memobench.common.errors import UserError

# In the form that JAX and XLA give them.
NO_DEVICE = (
    "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA "
    "(you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to skip this "
    "backend.)"
)
FILLED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4 bytes."
OLD_DRIVER = (
    "jaxlib/cuda/versions_helpers.cc:113: operation cudaGetDeviceCount(&device_count) failed: "
    "CUDA driver version is insufficient for CUDA runtime version"
)
NOT_CUDA = (
    "Unable to use CUDA because of the following issues with CUDA components:\n"
    "Outdated CUDA installation found.\nVersion JAX was built against: 13000\n"
    "Minimum supported: 13000\nInstalled version: 12020"
)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(NO_DEVICE),
        jax.errors.JaxRuntimeError(FILLED),
        RuntimeError(f"Unable to initialize backend 'cuda': {NOT_CUDA}"),
    ],
    ids=["no context", "filled", "driver"],
)
def test_a_device_that_cannot_be_used_is_one_line(error, make_run, tmp_path, monkeypatch):
    """And what was measured before stays."""
    memobench.run([make_run()], tmp_path, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_put", _raise(error))
        for ask in (
            lambda: memobench.run([make_run(seed=1)], tmp_path, progress=False),
            lambda: memobench.plan([make_run()]),
        ):
            with pytest.raises(UserError) as raised:
                ask()
            (line,) = str(raised.value).splitlines()
            assert " ".join(str(error).split())[:200] in line
            assert "nvidia-smi), update the driver, or set JAX_PLATFORMS=cpu" in line
    assert len(memobench.load_results(tmp_path)) == 1


def _raise(error):
    def raise_error(*_):
        raise error

    return raise_error


@pytest.mark.parametrize("raised", [RuntimeError(OLD_DRIVER), RuntimeError(NOT_CUDA), None])
def test_what_jax_does_without_is_one_line(raised, make_run, monkeypatch, caplog):
    """With a driver that is too old, JAX logs a traceback and takes the CPU."""
    put, log = jax.device_put, logging.getLogger("jax._src.xla_bridge")

    def put_first(x):
        """Starts as JAX does: the plugin's error, and then what it takes instead."""
        try:
            if raised:
                raise raised
        except RuntimeError:
            log.exception(
                "Jax plugin configuration error: Exception when calling %s.initialize()",
                "jax_plugins.xla_cuda13",
            )
        log.warning(
            "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not "
            "installed. Falling back to cpu."
        )
        return put(x)

    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_put", put_first)
        memobench.plan([make_run()])
    (line,) = caplog.messages
    assert line.startswith("this trains on the cpu: ")
    assert "\n" not in line
    said = str(raised) if raised else "An NVIDIA GPU may be present"
    assert " ".join(said.split())[:100] in line
    assert "update the driver" in line
    assert not log.filters
