"""``fastomp plan``: the plan of Python in JSON and in words, with the machine it assumes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fastomp_nvm.cli.main import main
from fastomp_nvm.cli.output import human_seconds
from fastomp_nvm.planning.plan import MEDIA, Machine, PlanRequest, plan

SIZE = ["--features", "1e6", "--observations", "1000", "--k", "20"]


def test_json_is_the_plan_of_python(capsys) -> None:
    """One object on stdout with everything the plan holds, of shards too."""
    words = ["--nodes", "4", "--medium", "optane", "--network-gbps", "10", "--tau", "0.9", "--gather-bytes", "5e8", "--json"]
    assert main(["plan", *SIZE, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    request = PlanRequest(1_000_000, 1000, 20, nodes=4, tau=0.9, gather_bytes=500_000_000)
    machine = Machine(device_gbps=MEDIA["optane"], network_gbps=10)
    wanted = plan(request, machine)
    assert found["request"] == asdict(request)
    assert found["machine"] == asdict(machine)
    for name, value in json.loads(json.dumps(asdict(wanted))).items():
        assert found[name] == value
    assert found["seconds"] == wanted.seconds


def test_people_read_what_binds_and_what_was_assumed(capsys) -> None:
    """A billion features on a hundred nodes, in words."""
    assert main(["plan", "--features", "1e9", "--observations", "1e5", "--k", "500", "--nodes", "100", "--medium", "nvme"]) == 0
    text = capsys.readouterr().out
    assert "500 of 1,000,000,000 features x 100,000 observations" in text
    assert "binds: memory capacity" in text
    assert "assumed: 256 GB at 150 GB/s, device 6.9 GB/s, 1000 GFLOP/s, network 2.5 GB/s; a tenth of the features" in text
    assert "a linear objective" in text


def test_options_override_the_machine_file(tmp_path: Path, capsys) -> None:
    """A file gives some constants, options replace them, and the rest are the defaults."""
    file = tmp_path / "node.yaml"
    file.write_text("memory_gb: 16\ndevice_gbps: 2\ngflops: 70\n", encoding="utf-8")
    assert main(["plan", *SIZE, "--machine", str(file), "--gflops", "90", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == asdict(Machine(memory_gb=16, device_gbps=2, gflops=90))
    assert main(["plan", *SIZE, "--machine", str(file), "--medium", "dram", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["device_gbps"] is None


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--features", "5"], "k is 20 with 5 features"),
        (["--features", "1000", "--nodes", "5"], "at most 4"),
        (["--tau", "2"], "tau"),
        (["--machine", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], named: str, capsys) -> None:
    """Exit code 2, and the offending value is named."""
    assert main(["plan", *SIZE, *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["1.5", "0", "many", "inf", "nan"])
def test_a_number_of_features_is_whole(text: str, capsys) -> None:
    """The parser refuses everything else."""
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *SIZE, "--features", text])
    assert stopped.value.code == 2
    assert "--features" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--gather-bytes", "--memory-gb", "--device-gbps"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_a_constant_is_finite_and_above_0(option: str, text: str, capsys) -> None:
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
