"""`pipesim check PLAN.csv`: is a plan legal, and can it hang?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.csv", help="A row per device, ops separated by commas.")],
) -> None:
    """Checks a plan file: every op once, in an order that can run; with sends and receives, that it cannot hang.

    Exit status 0 where it is legal, 2 with every violation where it is not.
    """
    from pipesim.check import check as check_plan
    from pipesim.plan_csv import read_plan

    found = read_plan(plan)
    check_plan(found)
    shape = found.shape
    typer.echo(
        f"{plan}: legal: {len(found)} ops, {shape.devices} devices, {shape.stages} stages, "
        f"{shape.microbatches} micro-batches, {shape.subsequences} subsequences"
    )
