"""The JSON Schema of submissions, from the declarations by which they are checked.

`python -m memobench.submissions.schema` prints it. A submission is a folder: the schema says what
its `submission.json` is, and the JSON that each certificate holds beside its weights. It is for
editors and other languages; what only code can check (names that look like ours, digests, weights)
`memobench check-submission` does.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from memobench import certificates, columns, spec, submissions
from memobench.columns import Domain
from memobench.models.base import Architecture
from memobench.spec import Spec
from memobench.tasks.base import Task


def schema() -> dict[str, Any]:
    """Of `submission.json` itself; `$defs/certificate` is of the JSON in a certificate."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A submission to memobench",
        "description": f"{submissions.HEAD} of a folder of certificates",
        **_object(submissions.HEADER, submissions.OPTIONAL),
        "$defs": {"certificate": certificate()},
    }


def certificate() -> dict[str, Any]:
    """Of the JSON under `memobench` in the metadata of a certificate's safetensors file."""
    head = _object(certificates.HEAD, certificates.OPTIONAL)
    head["properties"] |= {"task": _family(Task), "architecture": _family(Architecture)}
    return {"title": "What a certificate says beside its weights", **head}


def _object(domains: Mapping[str, Domain], optional: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {"description": domain.description, **_of(domain)}
            for name, domain in domains.items()
        },
        "required": [name for name in domains if name not in optional],
        "additionalProperties": False,
    }


def _family(family: type[Spec]) -> dict[str, Any]:
    """Any of our kinds, or one that a file of the submission defines."""
    kinds = family.kinds()
    theirs = {
        "type": "object",
        "properties": {"name": {"type": "string", "not": {"enum": sorted(kinds)}}},
        "required": ["name"],
    }
    return {"anyOf": [*(_kind(name, kinds[name]) for name in sorted(kinds)), theirs]}


def _kind(name: str, kind: type[Spec]) -> dict[str, Any]:
    properties: dict[str, Any] = {"name": {"const": name}}
    required = ["name"]
    for field in spec.fields(kind):
        allowed = _of(field.domain)
        allowed = {"anyOf": [allowed, {"type": "null"}]} if field.optional else allowed
        properties[field.name] = {"description": field.metadata["meaning"], **allowed}
        if field.omit is dataclasses.MISSING:
            required.append(field.name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _of(domain: Domain) -> dict[str, Any]:
    """What JSON Schema can say of a domain; {} where that is nothing."""
    made, *about = domain.made or (None,)
    if made is columns.whole:
        return {"type": "integer", "minimum": about[0], "maximum": about[1]}
    if made is columns.real:
        least, most, above = about
        lower = {"minimum": least} if above is None else {"exclusiveMinimum": above}
        return {"type": "number", **lower, "maximum": most}
    if made is columns.numbers:
        each = {"type": "number", "exclusiveMinimum": about[1]}
        return {"type": "array", "items": each, "minItems": 1, "maxItems": about[0]}
    if made is columns.one_of:
        return {"enum": about}
    if made is columns.truth:
        return {"type": "boolean"}
    if made is columns.matching:
        return {"type": "string", "pattern": f"^(?:{about[0]})$", "maxLength": about[1]}
    if made is columns.text_of:
        return {"type": "string", "minLength": 1, "maxLength": about[0]}
    if made is columns.or_null:
        return {"anyOf": [_of(about[0]), {"type": "null"}]}
    return _family(about[0]) if made is spec.is_spec else dict(domain.schema or {})


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
