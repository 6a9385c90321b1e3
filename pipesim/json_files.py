"""Reading of JSON files and one-line errors from their schemas; does not know what the files describe."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_type_hints

from pipesim.errors import FileError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel, ValidationError

    Schema = TypeVar("Schema", bound=BaseModel)
Record = TypeVar("Record")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the field {key!r} is given twice")
        found[key] = value
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises FileError when it cannot be read or is something else."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileError(str(path), "bytes", "must be a JSON text in UTF-8") from None
    except OSError as error:
        raise FileError(str(path), error.strerror or "unreadable", "must be a readable file") from None
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise FileError(str(path), place, f"must be JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise FileError(str(path), str(error), "must be plain JSON") from None
    if not isinstance(data, dict):
        raise FileError(str(path), type(data).__name__, "must hold one JSON object", "write {...}")
    return data


def _shown(value: object) -> str:
    """The value as JSON, cut to what fits in a line."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _first_error(path: Path, error: ValidationError) -> FileError:
    """One line for the first broken rule, with the number of the others."""
    errors = error.errors(include_url=False)
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"] if part != "function-after") or "file"
    others = f"{len(errors) - 1} more of its fields break rules" if len(errors) > 1 else ""
    if first["type"] in ("missing", "missing_argument"):
        return FileError(f"{path}: {field}", "missing", "is required", others)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return FileError(f"{path}: {field}", first["input"], "is not a field of this file", others)
    rule = first["msg"].replace("Input should be", "must be")
    return FileError(f"{path}: {field}", _shown(first["input"]), rule, others)


def validated(schema: type[Schema], data: object, path: Path) -> Schema:
    """`data` read by a schema; a broken rule is a FileError that names file, field, value and rule."""
    from pydantic import ValidationError

    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise _first_error(path, error) from None


def _schema_of(record: type[Any]) -> type[BaseModel]:
    """A strict schema with the fields, types and defaults of a dataclass."""
    from pydantic import ConfigDict, create_model

    types = get_type_hints(record)
    fields: dict[str, Any] = {
        field.name: (types[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(record)
    }
    return create_model(record.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **fields)


def read_record(record: type[Record], data: dict[str, Any], path: Path) -> Record:
    """A dataclass from a JSON object with just its fields; types are checked first, then its own rules."""
    checked = validated(_schema_of(record), data, path)
    try:
        return record(**checked.model_dump())
    except InputError as error:
        raise FileError(f"{path}: {error.where}", error.value, error.rule, error.remedy) from None
