"""`pipesim schedules | models | clusters`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def schedules(as_json: AsJson = False) -> None:
    """Lists the schedules, with what each is and where it comes from."""
    from pipesim.report import catalog_of_schedules, show

    show(catalog_of_schedules(), as_json=as_json)


def models(as_json: AsJson = False) -> None:
    """Lists the model presets; any Hugging Face config.json will do as well."""
    from pipesim.report import catalog_of_models, show

    show(catalog_of_models(), as_json=as_json)


def clusters(as_json: AsJson = False) -> None:
    """Lists the cluster presets; a JSON file of the same fields will do as well."""
    from pipesim.report import catalog_of_clusters, show

    show(catalog_of_clusters(), as_json=as_json)
