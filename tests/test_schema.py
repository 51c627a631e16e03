"""The JSON Schema of submissions allows what is valid and refuses what is not."""

import copy
import json
import re

import jax
import pytest

from memobench import certificates, strict_json, submissions
from memobench.models import base as models
from memobench.models.transformer import MLP, AttentionOnly
from memobench.submissions import schema
from memobench.tasks.associations import Associations
from tests import small

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": type(None),
}


def valid(value, rules):
    """Whether a value is what the rules ask; of JSON Schema the words that ours has."""
    known = {"title", "description", "$schema", "$defs", "type", "const", "enum", "not", "anyOf"}
    known |= {"minimum", "maximum", "exclusiveMinimum", "pattern", "minLength", "maxLength"}
    known |= {"items", "minItems", "maxItems", "uniqueItems", "properties", "required"}
    known |= {"patternProperties", "additionalProperties"}
    assert rules.keys() <= known
    kind = rules.get("type")
    if kind and not isinstance(value, TYPES[kind]):
        return False
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    holds = [
        "const" not in rules or (value == rules["const"] and type(value) is type(rules["const"])),
        "enum" not in rules or value in rules["enum"],
        "not" not in rules or not valid(value, rules["not"]),
        "anyOf" not in rules or any(valid(value, each) for each in rules["anyOf"]),
    ]
    if isinstance(value, int | float):
        holds += [
            value >= rules.get("minimum", value),
            value <= rules.get("maximum", value),
            "exclusiveMinimum" not in rules or value > rules["exclusiveMinimum"],
        ]
    if isinstance(value, str):
        holds += [
            rules.get("minLength", 0) <= len(value) <= rules.get("maxLength", len(value)),
            re.search(rules.get("pattern", ""), value) is not None,
        ]
    if isinstance(value, list):
        holds += [
            rules.get("minItems", 0) <= len(value) <= rules.get("maxItems", len(value)),
            not rules.get("uniqueItems") or len(set(value)) == len(value),
            all(valid(each, rules.get("items", {})) for each in value),
        ]
    if isinstance(value, dict) and all(holds):
        of_name = dict(rules.get("properties", {}))
        for pattern, each in rules.get("patternProperties", {}).items():
            of_name |= {name: each for name in value if re.search(pattern, name)}
        holds += [name in value for name in rules.get("required", ())]
        holds += [valid(value[name], each) for name, each in of_name.items() if name in value]
        holds.append(rules.get("additionalProperties", True) or value.keys() <= of_name.keys())
    return all(holds)


@pytest.fixture(scope="module")
def head():
    task, architecture = (
        Associations(vocab_size=5, n_sequences=10),
        MLP(d_model=2, d_head=2, d_mlp=3),
    )
    variables = models.init_on_host(
        architecture.build(task), task.context_length, jax.random.key(0)
    )
    certificate = certificates.of(task, architecture, variables["params"], first=7, by="me")
    return json.loads(strict_json.canonical(certificate.head()))


def _edited(found, path, value):
    found = copy.deepcopy(found)
    *outer, last = path
    place = found
    for name in outer:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return found


def test_what_a_certificate_says_is_valid(head):
    assert valid(head, schema.certificate())
    theirs = {"name": "of_their_own", "width": 3, "code": "code-0123456789ab"}
    assert valid({**head, "architecture": theirs}, schema.certificate())


@pytest.mark.parametrize(("architecture", "task"), list(small.pairs()))
def test_every_kind_is_valid_in_its_canonical_form(architecture, task):
    rules = schema.certificate()["properties"]
    assert valid(json.loads(json.dumps(task.canonical())), rules["task"])
    assert valid(json.loads(json.dumps(architecture.canonical())), rules["architecture"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("certificate",), 2),
        (("certificate",), True),
        (("spec_version",), None),
        (("task",), "associations"),
        (("task", "vocab_size"), 0),
        (("task", "vocab_size"), 2.5),
        (("task", "vocab_size"), None),
        (("architecture", "d_mlp"), -1),
        (("architecture", "activation"), "none"),
        (("architecture", "width"), 3),
        (("architecture", "name"), None),
        (("first",), 0),
        (("seed",), 2**32),
        (("by",), ""),
        (("more",), 1),
    ],
)
def test_what_no_certificate_says_is_not_valid(head, path, value):
    wrong = _edited(head, path, value)
    assert not valid(wrong, schema.certificate())


def test_a_submission_is_valid_and_an_edited_one_is_not(tmp_path):
    task, architecture = Associations(vocab_size=5), AttentionOnly(d_model=2, d_head=2)
    variables = models.init_on_host(
        architecture.build(task), task.context_length, jax.random.key(0)
    )
    certificate = certificates.of(task, architecture, variables["params"])
    path = submissions.write([certificate], "me", tmp_path, note="by hand")
    found = json.loads((path / submissions.HEAD).read_text())
    rules = json.loads(json.dumps(schema.schema()))
    assert valid(found, rules)
    for name, value in [
        ("submission", 1),
        ("submitter", ""),
        ("submitter", None),
        ("url", "ftp://me"),
        ("certificates", []),
        ("certificates", [*found["certificates"], *found["certificates"]]),
        ("certificates", ["weights.safetensors"]),
        ("code", {"../own.py": "0" * 64}),
        ("code", {"own.py": "0"}),
        ("more", 1),
    ]:
        assert not valid(_edited(found, (name,), value), rules), (name, value)
