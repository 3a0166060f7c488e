"""The parts of the page as HTML: pools, jobs, one job, figures. Every name is escaped by ``element``."""

from __future__ import annotations

import itertools
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ado_plugin.page.results import result_view
from ado_plugin.page.watch import Sample, Trail
from fastomp_nvm.analysis.wire import Result, decode_result, selections_of
from fastomp_nvm.errors import ServerError
from fastomp_nvm.selection.charts import Line, line_chart
from fastomp_nvm.selection.codec import decode_selection
from fastomp_nvm.selection.markup import Markup, element, joined, table
from fastomp_nvm.selection.progress import Tracker
from fastomp_nvm.selection.report import report_body
from fastomp_nvm.selection.run_info import RunInfo
from fastomp_nvm.selection.text import clean, human_bytes, human_seconds

__all__ = ["SoFar", "figures_view", "job_view", "jobs_view", "pools_view"]

#: Ended jobs, and answers of one job, that are shown.
_MOST_ENDED, _MOST_ANSWERS = 100, 20

_ENDED = ("done", "failed", "cancelled")


class SoFar(NamedTuple):
    """Features that the first request of a running job has selected so far: names, how many others, and requests of the job."""

    names: Sequence[str]
    others: int
    requests: int


def pools_view(pools: Sequence[Mapping[str, Any]], keys: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    """Return the pools with size, quota and their keys."""
    if not pools:
        return element("p", "There is no pool yet: 'fastomp ingest FILE grpc://HOST:PORT/POOL/KEY' makes one.")
    parts = []
    for pool in pools:
        name, quota = str(pool["pool"]), pool["quota"]
        size = human_bytes(pool["bytes"]) + (f" of {human_bytes(quota)}" if quota is not None else ", no quota")
        full = None
        if quota:
            full = element("progress", value=min(pool["bytes"] / quota, 1.0), max=1, aria_label=f"share of the quota of {name}")
        rows = [_key(key) for key in keys.get(name, ())]
        head = ("key", "type", "observations", "features", "size")
        parts.append(element("h3", clean(name), " ", element("span", size, class_="soft"), full))
        parts.append(table(head, rows, f"keys of {name}") if rows else element("p", "empty", class_="soft"))
    return joined(*parts)


def _key(key: Mapping[str, Any]) -> tuple[str | float | None, ...]:
    """Return the row of a key: type, shape and size, or the error of a store that cannot be opened."""
    if "error" in key:
        return str(key["key"]), clean(str(key["error"]), 120), None, None, None
    return str(key["key"]), str(key["dtype"]), int(key["n_obs"]), int(key["n_features"]), human_bytes(key["bytes"])


def jobs_view(jobs: Sequence[Mapping[str, Any]], trails: Mapping[str, Trail], *, writes: bool) -> Markup:
    """Return running, waiting and ended jobs; ``writes`` adds the buttons of a role that may act on them."""
    running = [job for job in jobs if job["state"] == "running"]
    queued = [job for job in jobs if job["state"] == "queued"]
    ended = [job for job in jobs if job["state"] in _ENDED][::-1]
    parts = [element("h3", f"Running ({len(running)})")]
    if running:
        rows = [_running(job, trails.get(job["job"]), writes) for job in running]
        parts.append(table(("job", "owner", "data", "progress", "time", ""), rows, "running jobs"))
    else:
        parts.append(element("p", "Nothing is running."))
    parts.append(element("h3", f"Waiting ({len(queued)})"))
    if queued:
        rows = [(_link(job), _owner(job), _data(job), _since(job["submitted"]), _button(job, "cancel", writes)) for job in queued]
        parts.append(table(("job", "owner", "data", "submitted", ""), rows, "waiting jobs"))
    else:
        parts.append(element("p", "Nothing waits."))
    parts.append(element("h3", f"Ended ({len(ended)}{f', the last {_MOST_ENDED} shown' if len(ended) > _MOST_ENDED else ''})"))
    if ended:
        head = ("job", "owner", "data", "state", "features", "score", "time", "")
        parts.append(table(head, [_ended(job, writes) for job in ended[:_MOST_ENDED]], "ended jobs"))
    else:
        parts.append(element("p", "No job has ended."))
    return joined(*parts)


def _running(job: Mapping[str, Any], trail: Trail | None, writes: bool) -> tuple[str, ...]:
    """Return the row of a running job."""
    tracker = None if trail is None else trail.tracker
    done = 0.0 if tracker is None else tracker.done
    bar = element("progress", value=round(done, 3), max=1, aria_label=f"progress of {job['job']}")
    info = _info(job)
    found = f"{info.selected} features" + ("" if info.k is None else f" of at most {info.k}")
    features = joined(bar, element("div", found if info.kind == "select" else _runs_of(info, tracker)))
    left = None if tracker is None else tracker.seconds_left
    spent = human_seconds(info.seconds)
    return (
        _link(job),
        _owner(job),
        _data(job),
        features,
        f"{spent}, {'time left not known yet' if left is None else f'about {human_seconds(left)} left'}",
        _button(job, "cancel", writes),
    )


def _runs_of(info: RunInfo, tracker: Tracker | None) -> str:
    """Return how far a job of another kind than a selection is."""
    if tracker is None or tracker.runs < 2:
        return info.kind
    return f"{info.kind}, {tracker.runs_done} of {tracker.runs} runs"


def _ended(job: Mapping[str, Any], writes: bool) -> tuple[str | float | None, ...]:
    """Return the row of an ended job."""
    info = _info(job)
    state = element("span", info.status, class_={"done": "good", "failed": "bad"}.get(job["state"]))
    if info.detail:
        state = joined(state, element("div", clean(info.detail, 160), class_="soft"))
    found = info.status == "finished"
    again = _button(job, "resume", writes) if not found else ""
    return (
        _link(job),
        _owner(job),
        _data(job),
        state,
        info.selected if found and info.kind != "verify" else None,
        info.score,
        human_seconds(info.seconds),
        again,
    )


def job_view(
    job: Mapping[str, Any],
    trail: Trail | None,
    answers: Sequence[Mapping[str, Any]],
    bandwidth: float | None,
    selected: SoFar | None,
    *,
    writes: bool,
) -> Markup:
    """Return one job: how far it is while it runs, its answer once it has one, its error if it failed."""
    info = _info(job)
    heading = element("h2", f"Job {clean(job['job'], 100)}", id="job-heading", tabindex="-1")
    facts = {
        "state": info.status + (f": {info.detail}" if info.detail else ""),
        "owner": str(job.get("owner", "")),
        "data": f"{job['pool']}/{job['key']}",
        "asked": _asked(info),
        "submitted": _since(job["submitted"]),
    }
    parts = [heading]
    chart, features = None, None
    if job["state"] == "running":
        facts |= _speed(info, trail, bandwidth)
        if trail is not None and len(trail.points) > 1 and info.kind == "select":
            scale = "R^2" if info.score is not None else "f so far"
            points = Line("so far", [(float(selected), value) for selected, value in trail.points])
            chart = line_chart(f"{scale} against features so far", [points], "features selected", scale)
        features = None if selected is None else _features(selected)
    pairs = (joined(element("dt", name), element("dd", clean(value, 300))) for name, value in facts.items())
    parts += [element("dl", *pairs)] + ([element("div", chart, features, class_="beside")] if chart or features else [])
    parts += [_button(job, "cancel" if job["state"] in ("running", "queued") else "resume", writes and job["state"] != "done")]
    if job["state"] == "done":
        parts += _answers(job, answers)
    return joined(*parts)


def _features(found: SoFar) -> Markup:
    """Return the features that a running job has selected so far."""
    title = "Selected so far" + (f", by the first of {found.requests} requests" if found.requests > 1 else "")
    listed = element("ol", *(element("li", clean(name)) for name in found.names), class_="features", aria_label=title)
    more = element("p", f"and {found.others} more", class_="soft") if found.others else None
    return element("section", element("h3", title), listed, more)


def _asked(info: RunInfo) -> str:
    """Return what a job was asked for."""
    parts = ("" if info.k is None and info.kind != "select" else f"k = {info.k}", info.objective, info.algorithm)
    kind = "" if info.kind == "select" else f"{info.kind}: "
    return kind + (", ".join(part for part in parts if part) or "all blocks")


def _speed(info: RunInfo, trail: Trail | None, bandwidth: float | None) -> Mapping[str, str]:
    """Return passes, bytes, rate and time of a running job."""
    facts = {"features": f"{info.selected} so far", "time": human_seconds(info.seconds)}
    if info.score is not None:
        facts["score"] = f"{info.score:.4g} so far"
    if trail is None:
        return facts
    tracker = trail.tracker
    left = tracker.seconds_left
    facts["passes"] = f"{tracker.sweep} begun" + (f", this one {tracker.share:.0%} done" if tracker.share else "")
    facts["read"] = human_bytes(tracker.bytes_done)
    if tracker.rate is not None:
        facts["read"] += f", {human_bytes(tracker.rate)}/s"
        if bandwidth:
            facts["read"] += f"; the device gives {human_bytes(bandwidth)}/s, memory more"
    facts["time left"] = "not known yet" if left is None else f"about {human_seconds(left)}"
    return facts


def _answers(job: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    """Yield the answers of a finished job and the buttons that download them."""
    result = _result(job, answers)
    formats: Sequence[tuple[str, str]] = (("json", "JSON"), ("csv", "CSV"), ("html", "HTML report"))
    if isinstance(result, str) or (result is not None and not selections_of(result)):
        formats = formats[:1]
    buttons = (
        element("button", f"Download {label}", type="button", data_download=ending, data_job=job["job"])
        for ending, label in formats
    )
    yield element("p", *(joined(button, " ") for button in buttons))
    if result is not None:
        yield element("p", result, class_="bad") if isinstance(result, str) else element("section", result_view(result))
        return
    for answer in answers[:_MOST_ANSWERS]:
        try:
            yield element("section", report_body(decode_selection(dict(answer))))
        except ValueError as error:
            yield element("p", f"This answer cannot be shown: {error}", class_="bad")
    if len(answers) > _MOST_ANSWERS:
        yield element("p", f"and {len(answers) - _MOST_ANSWERS} more answers: the downloads hold all of them")


def _result(job: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Result | str | None:
    """Return the result of a job that is an analysis, or why it cannot be read; None for selections."""
    if job["kind"] == "select":
        return None
    try:
        return decode_result(job["kind"], answers)
    except ServerError as error:
        return str(error)


def figures_view(samples: Sequence[Sample]) -> Markup:
    """Return the figures of the last hour as charts."""
    if len(samples) < 2:
        return element("p", "The first figures come after ten seconds.")
    now = samples[-1].time

    def minutes(sample: Sample) -> float:
        return round((sample.time - now) / 60.0, 2)

    def rate(name: str, scale: float) -> list[tuple[float, float]]:
        return [
            (minutes(after), scale * (after.values.get(name, 0.0) - before.values.get(name, 0.0)) / (after.time - before.time))
            for before, after in itertools.pairwise(samples)
        ]

    active = [(minutes(sample), sample.values.get("jobs_active", 0.0)) for sample in samples]
    charts = (
        ("Jobs waiting or running", Line("jobs", active), "jobs"),
        ("Jobs ended per minute", Line("ended", rate("jobs_finished_total", 60.0)), "per minute"),
        ("Calls per second", Line("calls", rate("calls_total", 1.0)), "per second"),
        ("Bytes received per second", Line("MB/s", rate("upload_bytes_total", 1e-6)), "MB/s"),
    )
    return joined(
        *(
            element("figure", element("figcaption", title), line_chart(title, [line], "minutes ago", unit, from_zero=True))
            for title, line, unit in charts
        )
    )


def _info(job: Mapping[str, Any]) -> RunInfo:
    """Return a job as lists of runs show it."""
    return RunInfo.of_job(dict(job), "")


def _link(job: Mapping[str, Any]) -> Markup:
    """Return a job's name, which opens it, and its kind."""
    link = element("a", clean(job["job"], 40), href=f"#job={urllib.parse.quote(job['job'], safe='')}")
    return link if job["kind"] == "select" else joined(link, element("div", clean(job["kind"], 20), class_="soft"))


def _owner(job: Mapping[str, Any]) -> str:
    """Return the owner of a job."""
    return clean(str(job.get("owner", "")), 40)


def _data(job: Mapping[str, Any]) -> str:
    """Return the data of a job."""
    return clean(f"{job['pool']}/{job['key']}", 60)


def _since(moment: float) -> str:
    """Return a moment in UTC, and how long ago it was."""
    passed = max(time.time() - moment, 0.0)
    ago = "now" if passed < 1 else f"{human_seconds(60 * (passed // 60) if passed >= 120 else 10 * (passed // 10) or 1.0)} ago"
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC, {ago}"


def _button(job: Mapping[str, Any], verb: str, shown: bool) -> Markup:
    """Return the button that cancels or resumes a job, or nothing."""
    if not shown:
        return Markup("")
    label = f"{verb.capitalize()} {clean(job['job'], 40)}"
    return element("button", verb.capitalize(), type="button", data_act=verb, data_job=job["job"], aria_label=label)
