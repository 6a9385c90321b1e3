"""A calibration profile: measured kernel times and bytes, looked up; knows no torch and does not measure.

A number is taken from the table of measured points first, then from the fit of that quantity; every answer
says which it was.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, model_validator

from pipesim.errors import FileError, InputError
from pipesim.files import write_text
from pipesim.json_files import read_object, validated
from pipesim.model import ModelSpec
from pipesim.profile_records import (
    Fit,
    Grid,
    HeldOut,
    Links,
    MemoryRow,
    OpName,
    Optimizer,
    Part,
    Positive,
    Provenance,
    Record,
    Samples,
    Stability,
    TimeRow,
)

SCHEMA_VERSION = 1
# What may differ between the model measured and the model simulated without changing a layer's time.
_FREE_FIELDS = ("name", "source", "layers", "tied_embeddings", "max_positions", "rope_theta")


class Estimate(Record):
    """A number out of a profile and where it came from."""

    value: float
    origin: str


class CalibrationProfile(Record):
    """Everything measured in one calibration; `clock` says what a second is."""

    model_config = ConfigDict(strict=False)  # only here: a dataclass (ModelSpec) cannot be read strictly

    schema_version: Literal[1]
    time_unit: Literal["s"]
    size_unit: Literal["byte"]
    clock: Literal["thread CPU time", "wall time", "CUDA events or host issue time, whichever is longer"]
    provenance: Provenance
    model: ModelSpec
    sequence_length: Positive
    micro_batch_size: Positive
    grid: Grid
    samples: list[Samples]
    times: list[TimeRow]
    memory: list[MemoryRow]
    fits: list[Fit]
    held_out: HeldOut | None
    optimizer: Optimizer | None
    links: Links
    stability: Stability
    notes: list[str]

    @model_validator(mode="after")
    def _has_layer_times(self) -> CalibrationProfile:
        if not any(row.part == "layer" and row.op == "F" for row in self.times):
            raise ValueError("must hold at least one time of a layer's F in `times`")
        return self

    @cached_property
    def tensor_parallel(self) -> tuple[int, ...]:
        """Tensor-parallel sizes whose share was measured."""
        return tuple(sorted({row.tp for row in self.times}))

    def check_model(self, model: ModelSpec, where: str = "profile") -> None:
        """InputError in one line if the profile is of another model's shapes; layer counts may differ."""
        for field in fields(ModelSpec):
            measured, wanted = getattr(self.model, field.name), getattr(model, field.name)
            if field.name not in _FREE_FIELDS and measured != wanted:
                rule = f"is of {self.model.name} with {field.name} = {measured}, {model.name} has {wanted}"
                raise InputError("--profile", where, rule, f"calibrate with --model {model.name}")

    @cached_property
    def _times(self) -> dict[tuple[int, str, str, int, int], TimeRow]:
        return {(r.tp, r.part, r.op, r.tokens, r.prefix): r for r in self.times}

    @cached_property
    def _sizes(self) -> dict[tuple[int, str, int, int], MemoryRow]:
        return {(r.tp, r.part, r.tokens, r.prefix): r for r in self.memory}

    def seconds(self, tp: int, part: Part, op: OpName, tokens: int, prefix: int) -> Estimate | None:
        """Seconds of one op (per layer); None if neither table nor fit knows it."""
        row = self._times.get((tp, part, op, tokens, prefix))
        if row is not None:
            return Estimate(value=row.seconds, origin="measured" if row.stable else "measured, unstable")
        return self._fitted(tp, part, op, tokens, prefix)

    def size(self, tp: int, part: Part, quantity: str, tokens: int, prefix: int) -> Estimate | None:
        """Bytes (per layer) of a field of MemoryRow; None if neither table nor fit knows it."""
        row = self._sizes.get((tp, part, tokens, prefix))
        if row is not None:
            return Estimate(value=getattr(row, quantity), origin="measured")
        return self._fitted(tp, part, quantity, tokens, prefix)

    def _fitted(self, tp: int, part: Part, quantity: str, tokens: int, prefix: int) -> Estimate | None:
        for fit in self.fits:
            if (fit.tp, fit.part, fit.quantity) == (tp, part, quantity) and fit.covers(prefix):
                which = "fit" if fit.stable else "fit of unstable points"
                outside = "" if fit.inside(tokens, prefix) else ", extrapolated"
                return Estimate(value=fit.value(tokens, prefix), origin=which + outside)
        return None


def read_profile(path: str | Path) -> CalibrationProfile:
    """A profile from its file; FileError in one line on an unknown version, a missing field, a bad number."""
    try:
        state = Path(path).stat()
    except OSError:
        return _read(Path(path), 0, 0)  # which says what is wrong
    return _read(Path(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int, _size: int) -> CalibrationProfile:
    """Once for each state of the file: a sweep asks for the same profile thousands of times."""
    data = read_object(path)
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        shown = "missing" if version is None else version
        rule = f"must be {SCHEMA_VERSION}, the version this pipesim reads"
        raise FileError(f"{path}: schema_version", shown, rule, "calibrate again, or use the pipesim that wrote it")
    try:
        return validated(CalibrationProfile, data, path)
    except FileError:
        raise
    except InputError as error:  # ModelSpec's own rules
        raise FileError(f"{path}: model.{error.where}", error.value, error.rule, error.remedy) from None


def as_json(profile: CalibrationProfile) -> dict[str, Any]:
    """The profile as plain JSON values."""
    return profile.model_dump(mode="json")


def write_profile(profile: CalibrationProfile, path: str | Path) -> None:
    """Write the file, whole or not at all."""
    write_json(as_json(profile), Path(path))


def write_json(data: dict[str, Any], path: Path) -> None:
    """A JSON file, replaced in one step; ValueError rather than a NaN in it."""
    write_text(path, _text(data) + "\n")


def _text(data: dict[str, Any]) -> str:
    """JSON with a line for each field and each record of a list, so that a diff shows which point changed."""
    rows = []
    for key, value in data.items():
        body = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            records = [json.dumps(item, allow_nan=False, ensure_ascii=False) for item in value]
            body = "[\n  " + ",\n  ".join(records) + "\n ]"
        rows.append(f" {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(rows) + "\n}"
