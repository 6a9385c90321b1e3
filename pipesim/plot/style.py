"""Colours and sizes of every picture, in one place; knows no figure library.

Forwards are light and backwards dark, whatever the hue, so that they stay apart in grey print and for readers who
see few colours. Later subsequences (and later stages of a device) are deeper shades. Where two pipelines oppose
each other, the hue says which: blue runs down, orange up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipesim.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pipesim.plan import Plan

# First and last shade of each kind, for one direction and for two.
_ONE_WAY = {
    Kind.F: ("#cde2f5", "#86bae6"),
    Kind.B: ("#e67a2b", "#a84a08"),
    Kind.I: ("#e67a2b", "#a84a08"),
    Kind.W: ("#55528c", "#33305f"),
    Kind.R: ("#d2d2cd", "#aeaea8"),
}
_DOWN = {
    Kind.F: ("#cde2f5", "#86bae6"),
    Kind.B: ("#3f7fbf", "#1d4d85"),
    Kind.I: ("#3f7fbf", "#1d4d85"),
    Kind.W: ("#2a3f5c", "#152338"),
    Kind.R: ("#d2d2cd", "#aeaea8"),
}
_UP = {
    Kind.F: ("#fde6bd", "#f6bd68"),
    Kind.B: ("#d2691e", "#94400c"),
    Kind.I: ("#d2691e", "#94400c"),
    Kind.W: ("#6b3a1c", "#3d1f0d"),
    Kind.R: ("#d2d2cd", "#aeaea8"),
}
KIND_NAMES = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.R: "recompute",
}
PHASES = (("warm-up", "#b9cbdb"), ("steady", "#6f7a83"), ("cool-down", "#e3bf9f"))
# What follows the backwards, by `SyncSpan.what`: its words and colour.
SYNCHRONISATION = {
    "replicas": ("sum over replicas", "#2b8a6f"),
    "pair": ("sum of both copies", "#57b894"),
    "optimizer": ("optimizer", "#7a5fa3"),
    "parameters": ("parameters to replicas", "#b39ccc"),
}
IDLE, INK, QUIET, GRID, LIMIT = "#f4f3ef", "#22262a", "#6a7076", "#dddcd6", "#b3261e"
FONT = "DejaVu Sans"  # comes with matplotlib: pictures look the same everywhere
DPI = 160
DARK = 0.3  # luminance below which text on a colour is white
ONLY_SHADE = 0.35  # where ops do not differ in shade
_STAGE_GAP = 0.6  # in steps of shade between the subsequences of one stage and of the next


def families(directions: int) -> tuple[dict[Kind, tuple[str, str]], ...]:
    """First and last shade of each kind, for each direction."""
    return (_ONE_WAY,) if directions == 1 else (_DOWN, _UP)


def shades(plan: Plan) -> NDArray[np.float64]:
    """float64 [ops] from 0 to 1: where each op lies between the first and the last shade of its kind."""
    k, places = plan.shape.subsequences, stage_places(plan)
    step = k - 1 + _STAGE_GAP + 1
    depth = places[plan.direction, plan.stage] * step + plan.subsequence
    last = places.max(initial=0) * step + k - 1
    return depth / last if last else np.full(len(plan), ONLY_SHADE)


def stage_places(plan: Plan) -> NDArray[np.int64]:
    """int64 [directions, stages]: how many earlier stages of its direction live on a stage's device."""
    return np.array([_places_on_device(devices) for devices in plan.placement.device_of.tolist()])


def colours(plan: Plan) -> NDArray[np.float64]:
    """float64 [ops, 3]: red, green and blue from 0 to 1 of each op."""
    ends = np.array(
        [[[_rgb(end) for end in family[kind]] for kind in Kind] for family in families(plan.placement.directions)]
    )
    first, last = ends[plan.direction, plan.kind, 0], ends[plan.direction, plan.kind, 1]
    found: NDArray[np.float64] = first + (last - first) * shades(plan)[:, np.newaxis]
    return found


def legend_entries(plans: Sequence[Plan]) -> list[tuple[str, str]]:
    """Name and colour of each kind of op, for each direction, that the plans have."""
    entries = []
    for directions in sorted({plan.placement.directions for plan in plans}):
        alike = [plan for plan in plans if plan.placement.directions == directions]
        kinds = sorted({int(kind) for plan in alike for kind in np.unique(plan.kind)})
        for direction in range(directions):
            entries += [
                (legend_name(kind, direction, directions), legend_colour(kind, direction, directions))
                for kind in map(Kind, kinds)
            ]
    return entries


def legend_name(kind: Kind, direction: int, directions: int) -> str:
    """The words for a kind of op in a legend, with its direction where there are two."""
    return KIND_NAMES[kind] + ("" if directions == 1 else (" down", " up")[direction])


def legend_colour(kind: Kind, direction: int, directions: int) -> str:
    """The colour that stands for a kind of op in a legend."""
    first, last = (np.array(_rgb(end)) for end in families(directions)[direction][kind])
    return hex_of(first + (last - first) * ONLY_SHADE)


def luminance(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [...]: relative luminance (WCAG 2.1) of sRGB colours [..., 3], 0 black to 1 white."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    found: NDArray[np.float64] = linear @ np.array([0.2126, 0.7152, 0.0722])
    return found


def hex_of(rgb: NDArray[np.float64]) -> str:
    """A colour as #rrggbb."""
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(text[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _places_on_device(devices: list[int]) -> list[int]:
    """For each stage of a direction, how many earlier stages live on the same device."""
    seen: dict[int, int] = {}
    places = []
    for device in devices:
        places.append(seen.get(device, 0))
        seen[device] = places[-1] + 1
    return places
