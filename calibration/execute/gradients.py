"""Sums the gradients of parameters that live more than once: opposing pipelines' copies, and tied embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

from calibration.execute.ranks import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from calibration.execute.ranks import Rank
    from calibration.execute.workload import Workload
    from calibration.layer import Stage
    from pipesim.plan import Plan


def sum_copies(rank: Rank, plan: Plan, stages: dict[int, Stage]) -> None:
    """Each stage's gradients over its copies, so that every copy holds the whole batch's. All ranks must call it.

    down holds stage s on device d, up on another: both end with the sum. One flat message a stage, in model order.
    """
    for number in range(plan.shape.stages):
        holders = sorted(set(plan.placement.device_of[:, number].tolist()))
        if len(holders) > 1:
            parameters = list(stages[number].parameters()) if rank.number in holders else []
            _sum_over(rank, holders, parameters)


def sum_tied(rank: Rank, plan: Plan, workload: Workload, stages: dict[int, Stage]) -> None:
    """The gradients of embedding and head where they are one matrix kept in two stages. All ranks must call it.

    Comes after sum_copies: every copy of each then gets the same total, direction by direction.
    """
    first, last = workload.partition.embedding_stage, workload.partition.head_stage
    if not workload.model.tied_embeddings or first == last:
        return
    for down_or_up in plan.placement.device_of:
        holders = sorted({int(down_or_up[first]), int(down_or_up[last])})
        if len(holders) > 1:
            here = [number for number in (first, last) if down_or_up[number] == rank.number]
            _sum_over(rank, holders, [_tied(stages[number]) for number in here])
        elif rank.number in holders:
            sum_tied_here(stages, workload)


def sum_tied_here(stages: dict[int, Stage], workload: Workload) -> None:
    """The same where both ends of the model are in this process."""
    ends = [_tied(stages[n]) for n in (workload.partition.embedding_stage, workload.partition.head_stage)]
    total = _grad(ends[0]) + _grad(ends[1])
    for parameter in ends:
        _grad(parameter).copy_(total)


def _tied(stage: Stage) -> nn.Parameter:
    part = stage.embedding if stage.embedding is not None else stage.head
    assert part is not None, "a stage with one end of the model has an embedding or a head"
    return part.weight


def _sum_over(rank: Rank, holders: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
    group = rank.open_group(("copies", *holders), holders)
    if not parameters:
        return
    rank.at(Phase.SUMMING)
    flat = torch.cat([_grad(parameter).flatten() for parameter in parameters])
    distributed.all_reduce(flat, group=group)
    for parameter, total in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        _grad(parameter).copy_(total.view_as(parameter))


def _grad(parameter: nn.Parameter) -> Tensor:
    """The gradient; zeros where no micro-batch of this copy's direction made one."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
