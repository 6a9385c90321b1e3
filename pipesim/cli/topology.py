"""`pipesim topology SCHEDULE`: what stands on which GPU, and what each link carries."""

from __future__ import annotations

from typing import Annotated

import typer

from pipesim.cli.options import parse_values, scenario_from, takes_scenario
from pipesim.cli.outputs import Json


@takes_scenario()
def topology(
    options: dict[str, str | None],
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", help="A name from `pipesim schedules`.")] = "bsipipe",
    as_json: Json = False,
) -> None:
    """Prints the map of devices on GPUs, each hop's kind of link and load, and the fullest ports.

    Examples:

      pipesim topology bsipipe -p 16 --mapping mirrored

      pipesim topology seq1f1b -p 8 --tp 2 --mapping auto --rank-order tp-pp-dp --dp 2
    """
    from pipesim.errors import InputError
    from pipesim.report import print_json
    from pipesim.report.topology import topology_json, topology_text
    from pipesim.scenario import run

    values = parse_values(options)
    outcome = run(scenario_from(values, schedule))
    if outcome.case.topology is None:
        raise InputError("--unit-costs", str(options["unit_costs"]), "have no GPUs to sit on", "give a model")
    if as_json:
        print_json(topology_json(outcome, outcome.case.topology))
    else:
        typer.echo(topology_text(outcome, outcome.case.topology))
