"""The live page: what a browser sees and may do, with real sockets and, where there is one, a real Chromium."""

from __future__ import annotations

import csv
import html
import http.client
import io
import json
import re
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the page needs Starlette and uvicorn")
pytest.importorskip("uvicorn", reason="the page needs Starlette and uvicorn")

from fastomp_nvm.engine.engine import Progress
from tests.service.gated_server import HELD_FROM, GatedServer
from tests.service.running import RunningServer, small_data, token_of, write_tokens

TOKENS = {"ada": ("write", None), "bob": ("read", None), "eve": ("write", ["other"])}
#: A name that would be a tag, an attribute and a script if it were not escaped.
NASTY = "<img src=x onerror=\"alert('x')\">&"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    """Run a server with a page and three principals; one store has a feature with a nasty name."""
    folder = tmp_path_factory.mktemp("page")
    tokens = folder / "tokens.yaml"
    write_tokens(tokens, TOKENS)
    with GatedServer(folder, "--token-file", str(tokens), "--page", "127.0.0.1:0") as running:
        X, y = small_data()
        with running.connect("/lab/genes", token=token_of("ada")) as client:
            client.put(X, y, names=[NASTY if column == 3 else f"gene_{column}" for column in range(X.shape[1])])
            client.select(k=5, run="finished", certificate=True)
        yield running
        running.open_gate()
        assert running.stop() == 0
        assert "Traceback" not in running.log


def asked(server: RunningServer, path: str, who: str | None = "ada", method: str = "GET") -> tuple[int, Mapping[str, str], str]:
    """Return status, headers and text of a reply."""
    place = urllib.parse.urlsplit(server.page)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        connection.request(method, path, headers={} if who is None else {"Authorization": f"Bearer {token_of(who)}"})
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read().decode()
    finally:
        connection.close()


def first_event(server: RunningServer, who: str, job: str = "") -> dict[str, str]:
    """Return the first event of a stream."""
    place = urllib.parse.urlsplit(server.page)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        connection.request("GET", f"/stream?job={urllib.parse.quote(job)}", headers={"Authorization": f"Bearer {token_of(who)}"})
        line = connection.getresponse().readline().decode()
        assert line.startswith("data: ")
        found: dict[str, str] = json.loads(line[6:])
        return found
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/page.svg", "/stream", "/jobs/finished/answer.html", "/nowhere"])
def test_every_reply_forbids_scripts_from_elsewhere_and_sets_no_cookie(server: GatedServer, path: str) -> None:
    """The policy allows scripts of this server alone, none inside the page, and a cookie that others could use does not exist."""
    status, headers, text = asked(server, path, None)
    assert status == {"/stream": 401, "/jobs/finished/answer.html": 401, "/nowhere": 404}.get(path, 200)
    assert "set-cookie" not in headers
    if status == 200:
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer wrong", "Basic YTpi", "Bearer " + "x" * 10_000])
def test_nothing_is_shown_without_a_token(server: GatedServer, header: str) -> None:
    """A request without a known token learns nothing, whatever it sends in its place."""
    place = urllib.parse.urlsplit(server.page)
    for method, path in (("GET", "/stream"), ("POST", "/jobs/finished/cancel"), ("GET", "/jobs/finished/answer.json")):
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        connection.request(method, path, headers={"Authorization": header} if header else {})
        reply = connection.getresponse()
        assert reply.status == 401
        assert "gene" not in reply.read().decode()
        connection.close()


def test_a_principal_sees_its_own_jobs_and_pools_alone(server: GatedServer) -> None:
    """Eve has no access to the pool and sees neither it nor jobs on it; Bob sees the pool, and no jobs of others."""
    ada, bob, eve = (first_event(server, who, "finished") for who in ("ada", "bob", "eve"))
    assert "genes" in ada["pools"]
    assert "finished" in ada["jobs"]
    assert "Coefficients" in ada["job"]
    assert "genes" in bob["pools"]
    assert "no such job" in bob["job"]
    assert "genes" not in eve["pools"]
    assert "no such job" in eve["job"]
    assert asked(server, "/jobs/finished/answer.json", "bob")[0] == 400


def test_names_are_escaped_wherever_they_appear(server: GatedServer) -> None:
    """A feature called like a tag with a script is text in the answer and in the report."""
    view = first_event(server, "ada", "finished")["job"]
    report = asked(server, "/jobs/finished/answer.html")[2]
    for text in (view, report):
        assert "<img" not in text
        assert "&lt;img src=x onerror=&quot;alert(&#x27;x&#x27;)&quot;&gt;&amp;" in text


def test_downloads_hold_the_answer_of_the_client(server: GatedServer) -> None:
    """JSON, CSV and HTML are files of the same answer that a client gets."""
    with server.connect("/lab/genes", token=token_of("ada")) as client:
        (expected,) = client.result("finished")
    status, headers, text = asked(server, "/jobs/finished/answer.json")
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="finished.json"'
    found = json.loads(text)
    assert found["features"] == list(expected.features)
    np.testing.assert_array_equal(found["coef"], expected.coef)
    rows = list(csv.DictReader(io.StringIO(asked(server, "/jobs/finished/answer.csv")[2])))
    assert [row["feature"] for row in rows] == [*expected.features, "intercept"]
    np.testing.assert_array_equal([float(row["coefficient"]) for row in rows], [*expected.coef, expected.intercept])
    report = asked(server, "/jobs/finished/answer.html")[2]
    assert report.startswith("<!doctype html>")
    assert "Certificate: f is" in report
    assert asked(server, "/jobs/finished/answer.exe")[0] == 404


#: Kinds of jobs, their options and requests, and texts that the page shows of their results.
ANALYSES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "grid": ({"over": {"k": [2, 3]}}, {}, ("2 selections", "k 3", "Download CSV")),
    "cv": ({"k_max": 2, "folds": 3}, {}, ("3 folds", "best", "standard error", "Download HTML report")),
    "stability": ({"subsamples": 6}, {"k": 4}, ("share of 6 subsamples", "stable")),
    "path": ({}, {"k": 4}, ("one run of sds_ma answers every k", "+gene_5")),
    "verify": ({}, {}, ("All 1 blocks (", "all blocks")),
}


@pytest.mark.parametrize("kind", ANALYSES)
def test_analyses_are_shown_and_downloaded(server: GatedServer, kind: str) -> None:
    """A job of every kind is listed with it; its result is a table, and the JSON that its command prints."""
    options, request, texts = ANALYSES[kind]
    with server.connect("/lab/genes", token=token_of("ada")) as client:
        found = client.fetch(client.submit_analysis(kind, options=options, run=f"page-{kind}", **request))
    event = first_event(server, "ada", f"page-{kind}")
    assert f'<div class="soft">{kind}</div>' in event["jobs"]
    for text in texts:
        assert text in event["job"], text
    assert "<img" not in event["job"]
    status, _, text = asked(server, f"/jobs/page-{kind}/answer.json")
    assert (status, json.loads(text)) == (200, json.loads(json.dumps(found.to_json())))
    assert ("Download CSV" in event["job"]) == (kind in ("grid", "cv", "path"))
    if kind == "path":
        rows = list(csv.DictReader(io.StringIO(asked(server, f"/jobs/page-{kind}/answer.csv")[2])))
        assert {row["answer"] for row in rows} == {"1", "2", "3", "4"}


def test_a_running_analysis_is_shown(server: GatedServer) -> None:
    """While its runs go on, a job shows its kind and how many of them have ended; a waiting and a cancelled one keep their kind."""
    server.close_gate()
    with server.connect("/lab/genes", token=token_of("ada")) as client:
        options = {"over": {"k": [2, 10], "seed": [0, 1]}}
        job = client.submit_analysis("grid", options=options, run="page-running", algorithm="sds_omp", plain=True)
        until(lambda: any(step.get("selected", 0) >= HELD_FROM for step in client.progress(job)["progress"]))
        until(lambda: "of 4 runs" in first_event(server, "ada")["jobs"])
        assert "grid: auto, sds_omp" in first_event(server, "ada", job)["job"]
        client.cancel(job)
        until(lambda: client.progress(job)["state"] == "cancelled")
        assert "grid: auto, sds_omp" in first_event(server, "ada", job)["job"]
    server.open_gate()


def test_a_read_role_only_reads(server: GatedServer) -> None:
    """Without the role write there is no button, and the request behind it is refused in one sentence."""
    assert "data-act" not in first_event(server, "bob")["jobs"]
    status, _, text = asked(server, "/jobs/finished/cancel", "bob", "POST")
    assert status == 403
    assert "needs 'write'" in json.loads(text)["error"]["message"]
    assert asked(server, "/jobs/finished/cancel", "ada", "GET")[0] == 405  # a link cannot act
    assert asked(server, "/jobs/finished/drop", "ada", "POST")[0] == 404


def test_the_features_of_a_running_job_are_named(server: GatedServer) -> None:
    """While a job runs the page names its features so far, escaped, at most 200; an observer of the client has their indices."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(40, 300))
    with server.connect("/lab/wide", token=token_of("ada")) as client:
        client.put(X, X[:, 7] - X[:, 9] + 0.1 * rng.normal(size=40), names=[f"{NASTY} {column}" for column in range(300)])
        server.close_gate()
        try:
            client.submit(k=9, run="some", algorithm="sds_omp", polish="none")
            view = until(lambda: (text := first_event(server, "ada", "some")["job"]) and "Selected so far" in text and text)
            names = re.findall(r"<li>(.*?)</li>", view)
            assert len(names) == HELD_FROM
            assert "more</p>" not in view
            server.open_gate()
            (answer,) = client.result("some")
            server.close_gate()
            client.submit(k=260, run="many", algorithm="top_k")
            view = until(lambda: (text := first_event(server, "ada", "many")["job"]) and "Selected so far" in text and text)
            assert view.count("<li>") == 200
            assert "and 60 more" in view
        finally:
            server.open_gate()
        seen: list[Progress] = []
        (again,) = client.result(client.submit(k=9, run="again", algorithm="sds_omp", polish="none"), observer=seen.append)
    assert seen[-1].features == tuple(again.indices.tolist()) == tuple(answer.indices.tolist())
    assert [html.unescape(name) for name in names] == list(answer.features[:HELD_FROM])


def test_many_open_pages_leave_the_server_its_work(server: GatedServer) -> None:
    """Streams beyond the limit are refused, and selections continue; closed ones give their place back."""
    place = urllib.parse.urlsplit(server.page)
    headers = {"Authorization": f"Bearer {token_of('ada')}"}
    connections = [http.client.HTTPConnection(place.hostname or "", place.port, timeout=30) for _ in range(60)]
    statuses = []
    for connection in connections:
        connection.request("GET", "/stream", headers=headers)
        statuses.append(connection.getresponse().status)
    assert set(statuses) == {200, 503}
    with server.connect("/lab/genes", token=token_of("ada")) as client:
        assert client.select(k=2).features
    for connection in connections:
        connection.close()
    until(lambda: asked_status(server) == 200)


def asked_status(server: RunningServer) -> int:
    """Return the status of a new stream, of which nothing is read."""
    place = urllib.parse.urlsplit(server.page)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request("GET", "/stream", headers={"Authorization": f"Bearer {token_of('ada')}"})
    status = connection.getresponse().status
    connection.close()
    return status


def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something holds, and return it."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run a real Chromium without a window."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="a browser is driven by selenium")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("there is no chromium with chromium-driver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(profile)})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_window_size(1200, 1000)
    yield started
    started.quit()


def sign_in(browser: Any, server: RunningServer, who: str) -> None:
    """Open the page and sign in by keyboard alone."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.get(server.page)
    browser.execute_script("sessionStorage.clear()")
    browser.get(server.page)
    until(lambda: browser.find_element(By.ID, "sign-in").is_displayed())
    assert browser.switch_to.active_element.get_attribute("id") == "token"
    browser.switch_to.active_element.send_keys(token_of(who), Keys.ENTER)
    until(lambda: browser.find_element(By.ID, "status").text == "Live")


def text_of(browser: Any, part: str) -> str:
    """Return the text that a part of the page shows."""
    found: str = browser.execute_script("return document.getElementById(arguments[0]).innerText", part)
    return found


def test_a_job_is_watched_cancelled_resumed_and_answered_in_a_browser(server: GatedServer, browser: Any) -> None:
    """A person sees a job run, cancels it, resumes it and reads its answer; the page keeps scroll and focus meanwhile."""
    sign_in(browser, server, "ada")
    until(lambda: "Nothing is running." in text_of(browser, "jobs"))
    server.close_gate()
    with server.connect("/lab/genes", token=token_of("ada")) as client:
        client.submit(k=12, run="watched", algorithm="sds_omp", polish="none")
    until(lambda: "Running (1)" in text_of(browser, "jobs"))
    browser.execute_script("location.hash = '#job=watched'")
    shown = until(lambda: f"{HELD_FROM} so far" in text_of(browser, "job") and text_of(browser, "job"))
    assert "running" in shown
    assert "time left" in shown
    assert "Selected so far" in shown
    assert browser.execute_script("return document.querySelectorAll('#job ol.features li').length") == HELD_FROM
    assert browser.execute_script(CHECK) == []
    browser.execute_script("document.querySelector('#jobs button[data-act=cancel]').focus(); scrollTo(0, 40)")
    time.sleep(2.5)  # more than two changes of the stream
    kept = browser.execute_script("return [document.activeElement.dataset.act, scrollY]")
    assert kept == ["cancel", 40]
    browser.execute_script("document.activeElement.click()")
    until(lambda: "cancelled" in text_of(browser, "job"))
    server.open_gate()
    browser.execute_script("document.querySelector('#job button[data-act=resume]').click()")
    answer = until(lambda: "Coefficients" in text_of(browser, "job") and text_of(browser, "job"))
    assert "12 of 60 features" in answer
    assert NASTY in answer
    assert browser.execute_script("return document.querySelectorAll('#job img').length") == 0
    refused = [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE" and "401" not in entry["message"]
    ]
    assert refused == []


#: Returns what is wrong for a person who does not see well, or uses a keyboard: contrast below 4.5, controls without a name,
#: tables without a label, pictures without a text, headings that skip a level.
CHECK = """
const wrong = [];
const named = (node) => node.textContent.trim() || node.getAttribute("aria-label") || (node.labels && node.labels.length);
const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = (c) => .2126 * linear(c[0] / 255) + .7152 * linear(c[1] / 255) + .0722 * linear(c[2] / 255);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const c = parts(getComputedStyle(node).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c;
  }
  return [255, 255, 255];
};
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.nodeValue.trim());
  if (!own || !node.getClientRects().length || node.closest("script, style, title")) continue;
  const style = getComputedStyle(node);
  const a = light(parts(node.closest("svg") ? style.fill : style.color)), b = light(ground(node));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${node.nodeName} ${node.textContent.slice(0, 30)}`);
}
for (const node of document.querySelectorAll("button, input, a")) if (!named(node)) wrong.push(`no name: ${node.outerHTML}`);
for (const node of document.querySelectorAll("table, progress")) {
  if (!node.getAttribute("aria-label")) wrong.push(`no label: ${node.nodeName}`);
}
for (const node of document.querySelectorAll("svg")) {
  const described = node.getAttribute("role") === "img" && node.getAttribute("aria-label");
  if (!node.getAttribute("aria-hidden") && !described) wrong.push("svg without a text");
}
let level = 0;
for (const node of document.querySelectorAll("h1, h2, h3, h4")) {
  if (!node.getClientRects().length) continue;
  const now = Number(node.nodeName[1]);
  if (now > level + 1) wrong.push(`heading ${now} after ${level}: ${node.textContent}`);
  level = now;
}
if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the window: ${document.documentElement.scrollWidth}`);
if (!document.documentElement.lang) wrong.push("no language");
return wrong;
"""


@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_can_be_read_by_everyone(server: GatedServer, browser: Any, width: int, theme: str) -> None:
    """Contrast, names of controls, labels and headings hold, at desktop and phone width, in light and dark."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        sign_in(browser, server, "ada")
        browser.execute_script("location.hash = '#job=finished'")
        until(lambda: "Coefficients" in text_of(browser, "job"))
        until(lambda: browser.execute_script("return document.querySelectorAll('#figures svg').length") == 4)
        assert browser.execute_script(CHECK) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_page_comes_back_after_the_server(tmp_path: Path, browser: Any) -> None:
    """When the server dies the page says so; when it is back on its port, the page is live again by itself."""
    from selenium.webdriver.common.by import By

    with RunningServer(tmp_path, "--page", "127.0.0.1:0") as server:
        port = urllib.parse.urlsplit(server.page).port
        browser.get(f"{server.page}#token={server.token()}")
        until(lambda: browser.find_element(By.ID, "status").text == "Live")
        assert "token" not in browser.current_url
        server.kill()
        until(lambda: "Connection lost" in browser.find_element(By.ID, "status").text)
        server.options = ("--page", f"127.0.0.1:{port}")
        server.start()
        until(lambda: browser.find_element(By.ID, "status").text == "Live")
