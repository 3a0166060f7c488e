"""The Grafana board of the deployment: every panel can be read, and shows what a running server exposes."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import defaultdict
from typing import Any

import pytest

import fastomp_nvm as fo
from tests.service.running import ROOT, RunningServer, small_data

BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
#: Units of Grafana that the board uses.
UNITS = {"Bps", "bool_yes_no", "cpm", "decbytes", "none", "reqps", "s", "short"}


@pytest.fixture(scope="module")
def exposed(server: RunningServer) -> dict[str, set[str]]:
    """Return the names of all samples of a server that did some work, each with its labels."""
    X, y = small_data()
    with server.connect("/board/data") as client:
        client.put(X, y)
        assert client.select(k=3).features
        with pytest.raises(fo.FastompError):
            client.call("select", {"pool": "board", "key": "nothing", "job": "none", "request": {"k": 1}})
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? [-+.e0-9]+$", text, re.MULTILINE):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in found} == set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    return found


def expressions() -> list[str]:
    """Return the queries of all panels."""
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_the_board_shows_what_the_server_exposes(exposed: dict[str, set[str]]) -> None:
    """Every metric and label of a query exists, and every metric of the server is in some query."""
    shown = set()
    for expression in expressions():
        names = re.findall(r"fastomp_\w+", expression)
        assert names
        assert set(names) <= set(exposed), expression
        shown |= set(names)
        labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        assert labels <= set().union(*(exposed[name] for name in names)), expression
    legends = {
        (label, target["expr"])
        for panel in PANELS
        for target in panel["targets"]
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    }
    for label, expression in legends:
        assert label == "instance" or any(label in exposed[name] for name in re.findall(r"fastomp_\w+", expression)), (
            label,
            expression,
        )
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in exposed}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == families
    variables = [each["query"]["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    assert variables == ["label_values(fastomp_build_info, instance)"]


def test_counters_are_shown_as_rates_and_histograms_as_quantiles() -> None:
    """A counter without a rate would only rise; a quantile needs the bounds of the buckets."""
    for expression in expressions():
        for name in re.findall(r"fastomp_\w+", expression):
            if name.endswith(("_total", "_bucket", "_sum", "_count")):
                assert re.search(rf"rate\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expression), expression
        assert ("_bucket" in expression) == ("histogram_quantile" in expression) == bool(re.search(r"by \(le\b", expression))
        assert expression.count("(") == expression.count(")")
        assert expression.count('instance=~"$instance"') == len(re.findall(r"fastomp_\w+", expression))


def test_every_panel_can_be_read() -> None:
    """Panels have titles, descriptions, units and a place of their own; titles and ids occur once."""
    titles, taken = [panel["title"] for panel in BOARD["panels"]], set()
    assert len(set(titles)) == len(titles) == len({panel["id"] for panel in BOARD["panels"]})
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        squares = {(place["x"] + column, place["y"] + row) for column in range(place["w"]) for row in range(place["h"])}
        assert max(column for column, _ in squares) < 24
        assert not squares & taken, panel["title"]
        taken |= squares
    for panel in PANELS:
        assert panel["title"].strip()
        assert panel["description"].strip()
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
