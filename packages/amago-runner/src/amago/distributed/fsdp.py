"""Fully sharded data parallelism (FSDP2): each process keeps a share of the trajectory encoder's parameters.

Layers are gathered one at a time when they run. Their gradients and the optimizer's moments are sharded alike.
Timestep encoder and heads are small beside a large sequence model: every process keeps them whole, and their
gradients are averaged after the backward pass.

A whole copy of the policy acts, so that processes may act different numbers of times. Saved files hold whole
tensors, so that a checkpoint does not depend on the number of processes or on this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map


def shard(encoder: nn.Module, processes: int, device: torch.device) -> None:
    """Shards an encoder over the processes, each module of its `nn.ModuleList`s as a unit; in place."""
    mesh = init_device_mesh(device.type, (processes,))
    for modules in [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]:
        for layer in modules:
            fully_shard(layer, mesh=mesh)
    fully_shard(encoder, mesh=mesh)


def is_sharded(parameter: Tensor) -> bool:
    """Whether this process holds a share of a parameter only."""
    return isinstance(parameter, DTensor)


def unsharded(state: Any) -> Any:
    """A nest of tensors with the full tensors of sharded ones; every process must call this if there are any."""
    if not any(isinstance(leaf, DTensor) for leaf in tree_leaves(state)):
        return state
    return tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, state)


def sharded_like(tensor: Any, parameter: Tensor) -> Any:
    """This process's share of a whole tensor, if it has the shape of a sharded parameter."""
    if (
        not isinstance(parameter, DTensor)
        or not isinstance(tensor, Tensor)
        or tensor.shape != parameter.shape
    ):
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def shard_model_state(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The state dict of a whole model, for `load_state_dict` of a sharded one."""
    parameters = dict(model.named_parameters())
    return {
        name: sharded_like(value, parameters[name]) if name in parameters else value
        for name, value in state.items()
    }


def shard_optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The state dict of an optimizer of whole or sharded parameters, for `optimizer`, which has the same ones.

    The implementation, fused or not, stays that of `optimizer`.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        index: {name: sharded_like(value, parameter) for name, value in state["state"][index].items()}
        for index, parameter in enumerate(parameters)
        if index in state["state"]
    }
    groups = [dict(group) for group in state["param_groups"]]
    for group, own in zip(
        groups, optimizer.param_groups, strict=False
    ):  # other numbers are torch's to refuse
        group.update({name: own[name] for name in ("fused", "foreach") if name in own})
    return {**state, "state": moments, "param_groups": groups}


def clip_grad_norm_(
    parameters: Iterable[nn.Parameter], max_norm: float, add_up: Callable[[Tensor], Tensor]
) -> Tensor:
    """As `nn.utils.clip_grad_norm_`, for parameters of which some are sharded.

    Args:
        parameters: parameters, whose gradients are scaled in place.
        max_norm: maximum L2 norm of all gradients as one vector.
        add_up: sums a tensor over the processes.

    Returns:
        The norm before, equal in all processes.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shares = [local(grad) for grad in grads if is_sharded(grad)]
    replicas = [grad for grad in grads if not is_sharded(grad)]
    norms = torch.stack([nn.utils.get_total_norm(shares), nn.utils.get_total_norm(replicas)])
    norm = (add_up(norms[0].square()) + norms[1].square()).sqrt()
    torch._foreach_mul_(shares + replicas, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def local(tensor: Tensor) -> Tensor:
    """The share of this process; a whole tensor itself."""
    share: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return share
