"""Accelerators that programs are compiled for without having one: their figures.

Figures are the makers': NVIDIA's data sheets of the H100 SXM and the H200, Google's of the TPU v5e;
clocks and units per core are those of compute capability 9.0.
"""

import dataclasses
from typing import Any

from jax.experimental import topologies

# XLA's text format of a GPU, with the fields that compiling needs.
_GPU = """\
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  core_count: {cores} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: {memory}
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  device_vendor: "NVIDIA Corporation" name: "{name}" device_address_bits: 64
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """An accelerator.

    Attributes:
      name: for readers.
      platform: as JAX names its topologies.
      bandwidth: bytes per second.
      flops: float32 products as training asks for them, operations per second.
      launch: seconds that a kernel takes at least.
      memory: bytes.
      cores: of a GPU.
      on_chip: bytes that a program may keep out of memory.
    """

    name: str
    platform: str
    bandwidth: float
    flops: float
    launch: float
    memory: int
    cores: int = 0
    on_chip: int = 0

    @property
    def planned_as(self) -> str:
        """The platform as the planner names it."""
        return "gpu" if self.platform == "cuda" else self.platform

    def topology(self) -> Any:
        """The description that JAX compiles for."""
        if self.platform == "tpu":
            return topologies.get_topology_desc("v5e:2x2", platform="tpu")
        text = _GPU.format(
            name=self.name, cores=self.cores, memory=self.memory, bandwidth=int(self.bandwidth)
        )
        return topologies.get_topology_desc(platform="cuda", target_config=text, topology="1x1x1")


TARGETS = {
    "h100": Target("NVIDIA H100 SXM", "cuda", 3.35e12, 67e12, 2e-6, 85520809984, 132),
    "h200": Target("NVIDIA H200", "cuda", 4.8e12, 67e12, 2e-6, 151397597184, 132),
    # float32 products in six passes of bfloat16.
    "v5e": Target("TPU v5e", "tpu", 0.819e12, 197e12 / 6, 0.0, 17179869184, on_chip=2**27),
}
