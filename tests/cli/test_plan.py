"""``fastomp plan``: the plan of Python in JSON and in words, with every assumption named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fastomp_nvm.cli.main import main
from fastomp_nvm.cli.output import human_seconds
from fastomp_nvm.planning.machine_profiles import MEDIA, NETWORKS, TYPICAL_NODE, Medium, Network, Profile, write_profile
from fastomp_nvm.planning.plan import PlanRequest, Resources, plan

SIZE = ["--features", "1e6", "--obs", "1000", "--k", "20"]


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Write a profile as a measurement would."""
    machine = replace(TYPICAL_NODE, source="measured somewhere", cores=4)
    write_profile(Profile(machine, {"disk": Medium("a disk, measured", 2e9)}), tmp_path / "node.yaml")
    return str(tmp_path / "node.yaml")


def test_json_is_the_plan_of_python(capsys) -> None:
    """One object on stdout with everything the plan holds."""
    assert main(["plan", *SIZE, "--nodes", "4", "--medium", "optane", "--network", "100gbe", "--tau", "0.9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    request = PlanRequest(1_000_000, 1000, 20, nodes=4, tau=0.9)
    wanted = plan(request, Resources(TYPICAL_NODE, MEDIA["optane"], NETWORKS["100gbe"]))
    assert found["request"] == asdict(request)
    for name, value in json.loads(json.dumps(asdict(wanted))).items():
        assert found[name] == value
    assert found["seconds"] == wanted.seconds
    assert [text.split(":")[0] for text in found["assumptions"]] == ["machine", "medium", "network", "shards", "data"]


def test_people_are_told_what_binds_and_what_was_assumed(capsys) -> None:
    """A billion features on a hundred nodes, in words."""
    assert main(["plan", "--features", "1e9", "--obs", "1e5", "--k", "500", "--nodes", "100", "--medium", "nvme"]) == 0
    text = capsys.readouterr().out
    assert "500 of 1,000,000,000 features x 100,000 observations" in text
    assert "what binds: " in text
    assert text.count("assumed, not measured: ") == 5


def test_what_a_profile_measured_is_no_assumption(profile: str, capsys) -> None:
    """Machine and medium come from the file; the kind of data remains assumed."""
    assert main(["plan", *SIZE, "--profile", profile, "--medium", "disk", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] == "measured somewhere"
    assert found["medium"] == "a disk, measured"
    assert [text.split(":")[0] for text in found["assumptions"]] == ["data"]


@pytest.mark.parametrize("network", [None, Network("measured", 1e9)])
def test_what_shards_cost_is_assumed_unless_it_was_measured(network: Network | None, tmp_path: Path, capsys) -> None:
    """A profile made where there was no Ray says nothing of them, and the plan says so."""
    write_profile(Profile(TYPICAL_NODE, {"disk": Medium("a disk", 2e9)}, network), tmp_path / "node.yaml")
    words = ["--profile", str(tmp_path / "node.yaml"), "--medium", "disk", "--nodes", "2", "--nodes-per-machine", "2"]
    assert main(["plan", *SIZE, *words, "--json"]) == 0
    assumed = [text.split(":")[0] for text in json.loads(capsys.readouterr().out)["assumptions"]]
    assert assumed == (["network", "shards", "data"] if network is None else ["data"])


def test_options_change_the_machine_and_the_network(profile: str, capsys) -> None:
    """Cores, memory and a rate in gigabytes per second, each named in the source."""
    words = ["--profile", profile, "--cores", "8", "--memory", "64", "--nodes", "2", "--network", "1.5", "--gather", "0.5"]
    assert main(["plan", *SIZE, *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] == "measured somewhere, with 8 cores, with 64 GB"
    assert found["network"] == "1.5 GB/s as given"
    assert found["request"]["gather_bytes"] == 500_000_000


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--obs", "10", "--k", "3"], "--features"),
        ([*SIZE, "--medium", "tape"], "tape"),
        ([*SIZE, "--network", "fast"], "fast"),
        ([*SIZE, "--network", "-1"], "-1"),
        ([*SIZE, "--features", "5"], "k is 20 with 5 features"),
        ([*SIZE, "--features", "1000", "--nodes", "5"], "at most 4"),
        ([*SIZE, "--tau", "2"], "tau"),
        ([*SIZE, "--profile", "nowhere.yaml"], "nowhere.yaml"),
        ([*SIZE, "--out", "x.yaml"], "--measure"),
        ([*SIZE, "--measure", "--profile", "x.yaml"], "exclude each other"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], named: str, capsys) -> None:
    """Exit code 2, and what is wrong is named."""
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["1.5", "0", "many", "inf", "nan"])
def test_a_number_of_features_is_whole(text: str, capsys) -> None:
    """The parser refuses everything else."""
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--features", text])
    assert stopped.value.code == 2
    assert "--features" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--gather", "--memory"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_an_amount_of_memory_is_finite_and_above_0(option: str, text: str, capsys) -> None:
    """The parser refuses everything else."""
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *SIZE, f"{option}={text}"])
    assert stopped.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0019, "2 ms"), (119.0, "119.0 s"), (120.0, "2.0 min"), (7199.0, "120.0 min"), (7200.0, "2.0 h"), (1e6, "11.6 days")],
)
def test_long_times_are_told_in_hours_and_days(seconds: float, text: str) -> None:
    """A plan may take weeks; a selection, milliseconds."""
    assert human_seconds(seconds) == text
