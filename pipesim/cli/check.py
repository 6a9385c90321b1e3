"""`pipesim check PLAN.csv`: is a plan legal, and can it hang?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.csv", help="A row per device, ops separated by commas.")],
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Sends and receives run beside the ops and wait for each other per device, direction, peer, "
            "channel or none. [the device does one thing at a time]",
        ),
    ] = None,
) -> None:
    """Checks a plan file: every op once, in an order that can run; with sends and receives, that it cannot hang.

    Exit status 0 where it is legal, 2 with every violation, or the cycle of a deadlock, where it is not.
    """
    from pipesim.check_file import check_file
    from pipesim.communication import Communication

    communication = Communication("overlapped", queues=queues) if queues else Communication("blocking")  # type: ignore[arg-type]
    typer.echo(check_file(plan, communication))
