"""Constraints written as YAML: they mean what the equal Python objects mean, and errors name the file and the line."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml

from fastomp_nvm import constraints as fc
from fastomp_nvm.constraints.written.description import parse_constraint, read_constraint, schema
from fastomp_nvm.constraints.written.families import FAMILIES
from fastomp_nvm.constraints.written.feature_names import FeatureNames
from fastomp_nvm.constraints.written.side_files import inline_side_files, read_inlined
from fastomp_nvm.errors import ConstraintError
from tests.harness.interpreter import steps_of

NAMES = ["age", "bp_low", "bp_high", "g_1", "g_2", "g_3", "f_a", "f_b", "f_c", "m_a", "m_b", "on"]

DESIGN = """
all:                       # intersection
  - cardinality: 20
  - partition: {groups: {clinical: [age, "bp_*"], genes: ["g_*"]}, caps: {clinical: 3, genes: 10}}
  - bounds:    {groups: {female: ["f_*"], male: ["m_*"]}, lower: {female: 2}, upper: {female: 8, male: 8}, total: 12}
  - fairness:  {judgements: survey.csv, lambda: 0.4}      # rows = people, columns = features, 1 = finds it fair
  - knapsack:  {costs: costs.csv, budget: 100}
  - oracle:    rules_of_a_description:allowed
"""

EXAMPLES = {
    "design": DESIGN,
    "cardinality": "cardinality: 3",
    "partition": "partition: {groups: {a: [age, 'g_?']}, caps: 2}",
    "partition file": "partition: {groups: groups.csv, caps: {x: 1, y: 2}}",
    "bounds": "bounds: {groups: {f: ['f_*']}, lower: 1, total: 4}",
    "laminar": "laminar: {groups: {body: ['bp_*', age], pressure: ['bp_*']}, caps: {body: 2, pressure: 1}}",
    "graphic": "graphic: {edges: {g_1: [a, b], g_2: [b, c], g_3: [c, a], age: [1, 2]}}",
    "graphic file": "graphic: {edges: edges.csv}",
    "knapsack": "knapsack: {costs: {age: 5, 'g_*': 1.5}, default: 1, budget: 10}",
    "fairness": "fairness: {judgements: {age: [1, 0, 1]}, unlisted: fair, lambda: 0.5}",
    "fairness kinds": (
        "fairness: {judgements: survey.csv, lambda: 0.3, kind: disparity, disparity: survey.csv, raises_disparity: [age, 'g_*']}"
    ),
    "random": "random: {p: 2, groups: 4, cap: 1, seed: 7}",
    "oracle": "oracle: {function: 'rules_of_a_description:few', takes: names, rank: 2, workers: 0}",
    "monotone": "monotone: {function: 'rules_of_a_description:size', threshold: 2}",
    "nested": "all: [{cardinality: 3}, {all: [{cardinality: 2}]}]",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the side files of the examples."""
    (tmp_path / "survey.csv").write_text(",".join(NAMES) + "\n" + "\n".join(",".join(row) for row in ["1" * 12, "0" + "1" * 11]))
    (tmp_path / "costs.csv").write_text("feature,cost\n" + "".join(f"{name},{10 + i}\n" for i, name in enumerate(NAMES)))
    (tmp_path / "groups.csv").write_text("group,feature\nx,age\ny,g_1\ny,g_2\ny,g_3\n")
    (tmp_path / "edges.csv").write_text("feature,u,v\ng_1,a,b\ng_2,b,c\ng_3,c,a\n")
    (tmp_path / "rules_of_a_description.py").write_text(
        "def allowed(features):\n    return 0 not in features\n"
        "def few(names):\n    return len(names) <= 2 and 'age' not in names\n"
        "def size(features):\n    return len(features)\n"
    )
    return tmp_path


def indices(*names: str) -> np.ndarray:
    return np.array([NAMES.index(name) for name in names], dtype=np.int64)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_parse_from_text_and_from_mappings(example, folder):
    """A text and the equivalent mapping give the same family of sets."""
    text = EXAMPLES[example]
    read = parse_constraint(text, NAMES, base_path=folder, source="c.yaml")
    same = parse_constraint(yaml.safe_load(text), NAMES, base_path=folder)
    generator = np.random.default_rng(0)
    for _ in range(50):
        features = generator.permutation(len(NAMES))[: generator.integers(0, 8)]
        assert read.independent(features) == same.independent(features)
        assert read.violations(features) == same.violations(features)
    assert (read.rank, read.p, read.needs_base) == (same.rank, same.p, same.needs_base)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_meet_the_published_schema(example):
    """The schema accepts every example."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(EXAMPLES[example]))


def test_the_schema_knows_every_registered_family():
    """Registry and schema name the same constraints."""
    published = set(schema()["$defs"]["constraint"]["properties"]) - {"all"}
    assert published == set(FAMILIES)


@pytest.mark.parametrize(
    "wrong", ["cardinality: -1", "partition: {groups: {}}", "a: 1", "{}", "all: []", "random: {p: 0, groups: 1, cap: 1}"]
)
def test_the_schema_refuses_what_the_parser_refuses(wrong):
    """Both reject a broken description."""
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(wrong))
    with pytest.raises(ConstraintError):
        parse_constraint(wrong, NAMES)


def test_the_design_example_means_what_it_says(folder):
    """Each part of the example is parsed and enforced."""
    constraint = parse_constraint(DESIGN, NAMES, base_path=folder)
    kinds = [type(part) for part in constraint.parts]
    assert kinds == [fc.Cardinality, fc.Partition, fc.Bounds, fc.Fairness, fc.Knapsack, fc.Oracle]
    assert constraint.needs_base
    assert constraint.violations(indices("f_a")) == ("group 'female' has 1 selected features, at least 2 are required",)
    assert constraint.violations(indices("f_a", "f_b")) == ()
    assert not constraint.independent(indices("age"))


def test_groups_files_and_numbers_are_read_as_written(folder):
    """Names that YAML would read as other types stay names; a file of groups and one number for all groups work."""
    constraint = parse_constraint("partition: {groups: {a: [on, age]}, caps: 1}", NAMES)
    assert constraint.groups.tolist() == [0] + [-1] * 10 + [0]
    numbered = parse_constraint("partition: {groups: {a: [1, 0x10, 1e3]}, caps: 1}", ["1", "0x10", "1e3", "16"])
    assert numbered.groups.tolist() == [0, 0, 0, -1]
    filed = parse_constraint(EXAMPLES["partition file"], NAMES, base_path=folder)
    assert filed.names == ("x", "y")
    assert filed.violations(indices("g_1", "g_2", "g_3")) == ("group 'y' has 3 selected features, at most 2 are allowed",)
    assert parse_constraint("knapsack: {costs: {}, default: 1e-3, budget: 1e0}", NAMES).costs[0] == 0.001


def test_a_cardinality_beside_bounds_becomes_their_total():
    """Places are reserved for lower bounds although the cardinality is written separately."""
    text = "all: [{cardinality: 3}, {bounds: {groups: {f: ['f_*']}, lower: {f: 2}, total: 9}}]"
    constraint = parse_constraint(text, NAMES)
    assert not constraint.independent(indices("age", "on"))
    assert constraint.independent(indices("age", "f_a", "f_b"))


def test_usable_features_count_for_lower_bounds():
    """A lower bound that only constant columns could meet is refused."""
    usable = np.array([name != "m_a" for name in NAMES])
    with pytest.raises(ConstraintError, match="lower bound 2 but only 1 usable"):
        parse_constraint("bounds: {groups: {m: ['m_*']}, lower: {m: 2}, total: 9}", NAMES, usable=usable)


WRONG = {
    "not yaml": ("all: [\n- {", r"^c\.yaml:2: this is not YAML"),
    "two documents": ("a: 1\n---\nb: 2", r"^c\.yaml:\d+: this is not YAML"),
    "empty": ("# nothing", r"^c\.yaml: the description is empty"),
    "a list": ("- cardinality: 3", r"^c\.yaml:1: found a list, expected a mapping"),
    "two keys": ("cardinality: 3\nrandom: {p: 1}", r"^c\.yaml:1: found 2 keys"),
    "unknown family": ("all:\n  - cardinalty: 3", r"^c\.yaml:2: unknown constraint 'cardinalty' \(did you mean 'cardinality'"),
    "duplicate key": ("partition:\n  caps: 1\n  groups: {}\n  caps: 2", r"^c\.yaml:4: the key 'caps' is repeated"),
    "duplicate group": ("partition:\n  groups:\n    a: [age]\n    a: [on]\n  caps: 2", r"^c\.yaml:4: the key 'a' is repeated"),
    "unknown key": ("partition:\n  group: {}\n  caps: 1", r"^c\.yaml:2: unknown key 'group' \(did you mean 'groups'"),
    "missing key": ("all:\n  - partition:\n      caps: 1", r"^c\.yaml:3: the key 'groups' is missing"),
    "unknown feature": (
        "partition:\n  groups:\n    a:\n      - agee\n  caps: 1",
        r"^c\.yaml:4: there is no feature 'agee' .*'age'",
    ),
    "unmatched pattern": (
        "partition:\n  groups:\n    a: ['bp_lov*']\n  caps: 1",
        r"^c\.yaml:3: the pattern 'bp_lov\*' matches no.*'bp_low'",
    ),
    "overlap": (
        "partition:\n  groups: {a: [age], b: ['*']}\n  caps: 1",
        r"^c\.yaml:2: feature 'age' is in group 'a' and in group 'b'",
    ),
    "cap missing": ("partition:\n  groups: {a: [age], b: [on]}\n  caps: {a: 1}", r"^c\.yaml:3: group 'b' has no number"),
    "cap of no group": (
        "partition:\n  groups: {clinical: [age]}\n  caps: {clinicl: 1}",
        r"^c\.yaml:3: there is no group 'clinicl' .*'clinical'",
    ),
    "negative cap": ("partition:\n  groups: {a: [age]}\n  caps: {a: -1}", r"^c\.yaml:3: found -1, expected at least 0"),
    "fraction": ("cardinality: 1.5", r"^c\.yaml:1: found '1.5', expected a whole number"),
    "quoted number": ("cardinality: '3'", r"^c\.yaml:1: found '3', expected a whole number"),
    "lower above upper": (
        "all:\n  - bounds: {groups: {a: [age]}, lower: 2, upper: 1, total: 3}",
        r"^c\.yaml:2: group 'a' has lower",
    ),
    "crossing": ("laminar: {groups: {a: [age, on], b: [on, g_1]}, caps: 1}", r"^c\.yaml:1: groups 'b' and 'a' overlap"),
    "edge": ("graphic:\n  edges:\n    age: [1, 2, 3]", r"^c\.yaml:3: the edge of 'age' has 3 ends"),
    "two edges": ("graphic:\n  edges:\n    age: [1, 2]\n    'a*': [1, 3]", r"^c\.yaml:4: feature 'age' has two edges"),
    "costs missing": ("knapsack: {costs: {age: 1}, budget: 1}", r"11 features have no number here, such as 'bp_low'"),
    "two costs": ("knapsack:\n  budget: 1\n  costs:\n    age: 1\n    'a*': 2", r"^c\.yaml:5: 'a\*' names a feature that has"),
    "cost not a number": ("knapsack: {costs: {age: .nan}, default: 1, budget: 1}", r"^c\.yaml:1: found '.nan', expected a number"),
    "negative budget": ("knapsack: {costs: {}, default: 1, budget: -1}", r"^c\.yaml:1: the budget is -1"),
    "lambda": ("fairness: {judgements: {age: [1]}, unlisted: fair, lambda: 2}", r"^c\.yaml:1: lambda is 2"),
    "judgement": ("fairness: {judgements: {age: [2]}, unlisted: fair, lambda: 1}", r"^c\.yaml:1: found the judgement '2'"),
    "ragged judgements": (
        "fairness: {judgements: {age: [1], on: [1, 0]}, unlisted: fair, lambda: 1}",
        "'on' has 2 judgements, expected 1",
    ),
    "not judged": ("fairness: {judgements: {age: [1]}, lambda: 1}", "11 features are not judged, such as 'bp_low'"),
    "kind": ("fairness: {judgements: {age: [1]}, unlisted: fair, lambda: 1, kind: acuracy}", "did you mean 'accuracy'"),
    "file without folder": (
        "knapsack:\n  costs: costs.csv\n  budget: 1",
        r"^c\.yaml:2: found 'costs.csv', but files cannot be opened",
    ),
    "function": ("oracle: nowhere_to_be_found:f", r"^c\.yaml:1: 'nowhere_to_be_found:f' cannot be imported"),
    "no function": ("oracle: math", r"^c\.yaml:1: 'math' names no function"),
    "deep": ("all: [{all: [{all: [{all: [{cardinality: 1}]}]}]}]", "nested more than 3 levels"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_named_with_file_and_line(case):
    """Each mistake is one sentence that starts with its place."""
    text, message = WRONG[case]
    with pytest.raises(ConstraintError, match=message) as caught:
        parse_constraint(text, NAMES, source="c.yaml")
    assert "\n" not in str(caught.value)


WRONG_FILES = {
    "unknown feature": ("costs.csv", "feature,cost\nage,1\nagee,2\n", r"costs\.csv:3: there is no feature 'agee' .*'age'"),
    "missing column": ("costs.csv", "feature,price\nage,1\n", r"costs\.csv:1: the column 'cost' is missing"),
    "ragged": ("costs.csv", "feature,cost\nage,1,2\n", r"costs\.csv:2: found 3 fields, expected 2"),
    "not a number": ("costs.csv", "feature,cost\nage,dear\n", r"costs\.csv:2: found 'dear', expected a number"),
    "nan": ("costs.csv", "feature,cost\nage,nan\n", r"costs\.csv:2: found 'nan', expected a number"),
    "twice": ("costs.csv", "feature,cost\nage,1\nage,2\n", r"costs\.csv:3: feature 'age' is listed twice"),
    "empty": ("costs.csv", "", "the column 'feature' is missing"),
    "judgement": ("survey.csv", ",".join(NAMES) + "\n" + ",".join("1" * 11) + ",x\n", r"survey\.csv:2: found the judgement 'x'"),
    "short row": ("survey.csv", ",".join(NAMES) + "\n1\n", r"survey\.csv:2: found 1 judgements, expected 12"),
    "nobody": ("survey.csv", ",".join(NAMES), "hold no person"),
    "absent": ("survey.csv", None, "the file 'survey.csv' cannot be read"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_mistakes_in_side_files_are_named_with_both_places(case, folder):
    """An error in a side file names its line after that of the description, read directly or written into the description."""
    name, content, message = WRONG_FILES[case]
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    path = folder / "c.yaml"
    path.write_text(textwrap.dedent(DESIGN))
    line = next(number for number, text in enumerate(DESIGN.splitlines(), start=1) if name in text)
    with pytest.raises(ConstraintError, match=rf"^c\.yaml:{line}: .*{message}"):
        read_constraint(path, NAMES)
    if case not in ("unknown feature", "judgement", "nobody"):  # these need the features of a store
        with pytest.raises(ConstraintError, match=rf"^c\.yaml:{line}: .*{message}"):
            read_inlined(path)


def test_a_missing_description_is_one_sentence(tmp_path):
    """A missing file is a ``ConstraintError``."""
    with pytest.raises(ConstraintError, match="cannot be read"):
        read_constraint(tmp_path / "none.yaml", NAMES)


def test_descriptions_of_strangers_open_no_file_and_run_no_code(folder):
    """Without a folder and without permission neither side files nor functions are touched, however they are nested."""
    for text in ("oracle: os:getcwd", "monotone: {function: 'os:getpid', threshold: 1}", "all: [{oracle: {function: 'os:abort'}}]"):
        with pytest.raises(ConstraintError, match="can only run locally"):
            parse_constraint(text, NAMES, allow_oracle=False)
    for text in (
        "partition: {groups: /etc/passwd, caps: 1}",
        "graphic: {edges: edges.csv}",
        "fairness: {judgements: s.csv, lambda: 1}",
    ):
        with pytest.raises(ConstraintError, match="files cannot be opened here"):
            parse_constraint(text, NAMES, allow_oracle=False)
    with pytest.raises(ConstraintError, match="this is not YAML"):
        parse_constraint("cardinality: !!python/object/apply:os.getpid []\nx: *y", NAMES)


def test_aliases_do_not_multiply_without_end():
    """Groups can be shared by an alias; lists that aliases multiply are refused before they are expanded."""
    shared = "all: [{partition: {groups: &g {a: [age, on]}, caps: 1}}, {bounds: {groups: *g, total: 2}}]"
    assert parse_constraint(shared, NAMES).rank == 2
    ten = ", ".join(["*a"] * 100)
    bomb = f"all: [&a {{all: [{', '.join(['{cardinality: 1}'] * 100)}]}}, {ten}]"
    with pytest.raises(ConstraintError, match="more than 1000 constraints"):
        parse_constraint(bomb, NAMES)
    with pytest.raises(ConstraintError, match="nested more than"):
        parse_constraint("&a {all: [*a]}", NAMES)


DEEP = {
    "lists": "[" * 25_000,
    "mappings": "{a: " * 25_000,
    "block": "- " * 25_000,
    "keys": "? " * 25_000,
    "aliases": "".join(f"- &a{place + 1} [*a{place}]\n" for place in range(40)).replace("*a0", "x"),
}


@pytest.mark.parametrize("case", DEEP)
def test_deep_text_is_one_sentence(case, tmp_path):
    """A text nested too deeply to be composed in C is refused by the limit, read directly and with its side files."""
    for read in (lambda: parse_constraint(DEEP[case], NAMES), lambda: inline_side_files(DEEP[case], tmp_path)):
        with pytest.raises(ConstraintError, match="nested more than 32 levels deep") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_text_that_is_short_and_means_much_is_one_sentence():
    """Aliases count with the values they expand to; a long text and many directives are refused before they are parsed."""
    doubled = "".join(f"- &a{place + 1} [*a{place}, *a{place}]\n" for place in range(25)).replace("*a0", "x")
    with pytest.raises(ConstraintError, match="values, aliases included"):
        parse_constraint(doubled, NAMES)
    with pytest.raises(ConstraintError, match="characters, at most"):
        parse_constraint("#" * (65 << 20), NAMES)
    with pytest.raises(ConstraintError, match="directives"):
        parse_constraint("".join(f"%TAG !t{place}! x\n" for place in range(20)) + "--- a", NAMES)


def test_an_exact_name_wins_over_the_pattern_it_looks_like():
    """The text ``x[1]`` or ``a*`` means the feature of that name if there is one, else it is a pattern."""
    names = FeatureNames(["x[1]", "x1", "a*", "ab", "a\nb", "B"])
    found = [features.tolist() for features in names.resolve(["x[1]", "a*", "x?", "a?", "[A-Z]", "*b", "x1", "none", "none*", "*"])]
    assert found == [[0], [2], [1], [2, 3], [5], [3, 4], [1], [], [], [0, 1, 2, 3, 4, 5]]


def test_a_thousand_prefixes_cost_little_more_than_one():
    """Prefix patterns are resolved together in one pass over the names."""
    names = FeatureNames([f"chr{index % 1000:03d}_{index}" for index in range(100_000)])
    assert len(names.indices) == 100_000

    prefixes = [f"chr{index:03d}_*" for index in range(1000)]
    assert [len(features) for features in names.resolve(prefixes)] == [100] * 1000
    assert steps_of(lambda: names.resolve(prefixes)) < 2 * steps_of(lambda: names.resolve(prefixes[:1]))


def test_near_matches_stay_quick_among_many_names():
    """An unknown name among a hundred thousand is compared with a sample of them."""
    names = [f"g_{index}" for index in range(100_000)]
    with pytest.raises(ConstraintError, match=re.escape("there is no feature 'g_12x'") + ".*g_12"):
        parse_constraint("partition: {groups: {a: [g_12x]}, caps: 1}", names)
