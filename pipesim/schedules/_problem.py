"""Opposing pipelines as a list scheduling problem, and its mirror in time; knows no search and no plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.schedules._listing import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pipesim.plan import Placement


def build(
    placement: Placement,
    devices: int,
    duration: NDArray[np.int64],
    hop: NDArray[np.int64],
    acquired: NDArray[np.int64],
    released: NDArray[np.int64],
    limit: NDArray[np.int64],
) -> Problem:
    """A problem from per-op tables [2, stages, m, k], role 0 forward and 1 backward, memory with a leading [R].

    duration, hop: nanoseconds; acquired, released: what each op takes and gives back; limit [R, devices].
    """
    _, stages, _, k = duration.shape
    device_of, direction_of = placement.device_of.astype(np.int64), placement.direction_of.astype(np.int64)
    ways, at = np.indices(device_of.shape)
    by_device = np.argsort(device_of, axis=None, kind="stable")
    streams = np.stack([ways.reshape(-1)[by_device], at.reshape(-1)[by_device]], axis=1)
    units, counts = units_by_direction(direction_of, k)
    memory = (len(limit), -1)
    return Problem(
        stages=stages,
        subsequences=k,
        device_of=device_of,
        streams=streams.reshape(devices, -1, 2),
        units=units,
        unit_counts=counts,
        direction_of=direction_of,
        duration=np.ascontiguousarray(duration).reshape(-1),
        hop=np.ascontiguousarray(hop).reshape(-1),
        acquired=np.ascontiguousarray(acquired).reshape(memory),
        released=np.ascontiguousarray(released).reshape(memory),
        limit=limit,
        claim=claims(device_of, direction_of, acquired, devices),
    )


def by_unit(problem: Problem, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per-op values as [..., role, stage, micro-batch, subsequence]."""
    shape = (2, problem.stages, len(problem.direction_of), problem.subsequences)
    return values.reshape(*values.shape[:-1], *shape)


def flipped(problem: Problem, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per-op values [..., ops] of the mirrored problem: roles swapped, micro-batches in reverse."""
    turned = by_unit(problem, values)[..., ::-1, :, ::-1, :]
    return np.ascontiguousarray(turned).reshape(values.shape)


def mirrored(problem: Problem) -> Problem:
    """The problem with time running backwards. The way of a message is the same op pair, the other way round."""
    direction_of = problem.direction_of[::-1].copy()
    units, counts = units_by_direction(direction_of, problem.subsequences)
    hop = by_unit(problem, problem.hop)
    into = np.zeros_like(hop)  # the hop into an op is the hop out of its mirror image
    into[0, 1:] = hop[0, :-1]
    into[1, :-1] = hop[1, 1:]
    acquired = flipped(problem, problem.released)
    devices = problem.limit.shape[1]
    return problem._replace(
        units=units,
        unit_counts=counts,
        direction_of=direction_of,
        duration=flipped(problem, problem.duration),
        hop=flipped(problem, into.reshape(-1)),
        acquired=acquired,
        released=flipped(problem, problem.acquired),
        claim=claims(problem.device_of, direction_of, by_unit(problem, acquired), devices),
    )


def units_by_direction(direction_of: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The units of each direction in order, padded to one length [2, most], and how many there are [2]."""
    direction = np.repeat(direction_of, k)
    lists = [np.flatnonzero(direction == way) for way in range(2)]
    counts = np.array([len(units) for units in lists], dtype=np.int64)
    padded = np.zeros((2, max(1, int(counts.max()))), dtype=np.int64)
    for way, units in enumerate(lists):
        padded[way, : len(units)] = units
    return padded, counts


def claims(
    device_of: NDArray[np.int64], direction_of: NDArray[np.int64], acquired: NDArray[np.int64], devices: int
) -> NDArray[np.int64]:
    """int64 [R, devices, m]: all that a micro-batch acquires on a device, from acquired [R, 2, stages, m, k]."""
    resources, _, stages, microbatches, _ = acquired.shape
    claim = np.zeros((resources, devices, microbatches), dtype=np.int64)
    per_stage = acquired.sum(axis=(1, 4))
    everyone = np.arange(microbatches)
    for stage in range(stages):
        claim[:, device_of[direction_of, stage], everyone] += per_stage[:, stage]
    return claim
