"""What memory a configuration takes, decided before anything is allocated: a pure function. No torch.

    plan(config, weights, hardware, limits) -> MemoryPlan

With no GPU the plan lists what the engine allocates today; with GPUs, the placement the engine is built for.
"""

from __future__ import annotations

from nextfit.config import ModelConfig
from nextfit.errors import ConfigError
from nextfit.memory import plan_engine, plan_gpu
from nextfit.memory.hardware import Hardware
from nextfit.memory.plan_values import Buffer, Limits, MemoryPlan, check_limits
from nextfit.memory.plan_weights import Weights

__all__ = ["Buffer", "Limits", "MemoryPlan", "plan"]

ENGINE_NOTE = "what the engine allocates on a CPU"
GPU_NOTES = (
    "planned, not built yet: the engine has no GPU placement; owners on GPUs are what it is being built for",
    "assumed until measured: modules and context, communicator, graph pools, the host's processes",
)


def plan(config: ModelConfig, weights: Weights, hardware: Hardware, limits: Limits) -> MemoryPlan:
    """Every buffer of `config` with these weights, machine and limits; whether it fits is a property of the plan.

    On GPUs as few experts go to the host as fit, unless `limits.host_experts` says how many. Raises ConfigError
    for limits that make no sense on any machine.
    """
    gpus = hardware.gpus
    check_limits(limits, config, bool(gpus))
    if not gpus:
        found = tuple(plan_engine.buffers(config, weights, limits))
        n = config.num_experts
        return MemoryPlan("engine", limits, hardware, found, (ENGINE_NOTE,), n, n, weights.source)
    _check_ranks(config, len(gpus))
    h = limits.host_experts
    if h is None:
        h = plan_gpu.fewest_on_host(config, weights, limits, len(gpus), min(gpus))
    found = tuple(plan_gpu.buffers(config, weights, limits, len(gpus), h))
    return MemoryPlan("design", limits, hardware, found, GPU_NOTES, h, config.num_experts, weights.source)


def _check_ranks(c: ModelConfig, ranks: int) -> None:
    """Raises ConfigError where heads or experts cannot be split evenly."""
    for name in (
        "num_attention_heads",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ):
        value = getattr(c, name)
        if value % ranks:
            raise ConfigError(f"--gpu names {ranks} GPUs, which do not divide {name}={value} of this model")
    kv = c.num_key_value_heads
    if ranks % kv and kv % ranks:
        raise ConfigError(
            f"--gpu names {ranks} GPUs, which neither divide nor repeat num_key_value_heads={kv}"
        )
