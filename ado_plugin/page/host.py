"""The page over HTTP: the only importer of Starlette and uvicorn.

Callers are identified by the header ``Authorization: Bearer TOKEN`` alone, with the tokens and roles of the server. There is no
cookie, so a page of another site cannot act in a user's name. The browser gets its parts as HTML over one stream of server-sent
events, and nothing is loaded from elsewhere: the policy of every reply says so.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ado_plugin.page.bandwidth import Bandwidths
from ado_plugin.page.names import FeatureNames
from ado_plugin.page.views import SoFar, figures_view, job_view, jobs_view, pools_view
from ado_plugin.page.watch import Trail, Watch
from ado_plugin.service.access import Access, Principal
from ado_plugin.service.jobs import Jobs
from ado_plugin.service.metrics import Figure
from ado_plugin.service.operations import Caller, Operations
from ado_plugin.service.pools import Pools
from fastomp_nvm.analysis.wire import decode_result, selections_of
from fastomp_nvm.errors import FastompError, ServerError
from fastomp_nvm.selection.codec import decode_message, decode_selection, encode_message
from fastomp_nvm.selection.display import selected_columns
from fastomp_nvm.selection.report import report_page, style_sheet
from fastomp_nvm.selection.result import Selection

__all__ = ["PageHost"]

_log = logging.getLogger(__name__)

#: Open connections, streams among them, and seconds between two changes of a stream.
_MOST_CONNECTIONS, _MOST_STREAMS, _STREAM_SECONDS = 128, 48, 1.0
#: Seconds after which a silent stream sends a comment, and after which pools are listed again.
_BEAT_SECONDS, _POOLS_SECONDS = 15.0, 5.0

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FOLDER = Path(__file__).parent


class PageHost:
    """Serves the page in a separate thread; listening once constructed.

    Parameters
    ----------
    host : str
    port : int
        0 for any; the attribute ``url`` holds the actual one.
    operations : Operations
    jobs : Jobs
    pools : Pools
    access : Access
    figures : callable
        Returns the metrics of the server.
    tls : (Path, Path), optional
        Certificate chain and its key, PEM.

    Raises
    ------
    OSError
        The page cannot listen on the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        operations: Operations,
        jobs: Jobs,
        pools: Pools,
        access: Access,
        figures: Callable[[], Sequence[Figure]],
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self._operations = operations
        self._jobs = jobs
        self._access = access
        self._bandwidths = Bandwidths(pools)
        self._names = FeatureNames(pools)
        self._streams = 0
        self._listed: dict[str, tuple[float, str]] = {}  # principal -> moment and view of its pools
        routes = [
            Route("/", _file("page.html", "text/html")),
            Route("/page.js", _file("page.js", "text/javascript")),
            Route("/page.svg", _file("page.svg", "image/svg+xml")),
            Route("/page.css", _styles),
            Route("/stream", self._stream),
            Route("/jobs/{job}/answer.{ending}", self._answer),
            Route("/jobs/{job}/{verb}", self._act, methods=["POST"]),
        ]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        scheme, shown = "http" if tls is None else "https", f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{self._socket.getsockname()[1]}/"
        self._watch = Watch(lambda: jobs.standings(None), figures)
        config = uvicorn.Config(
            Starlette(routes=routes, exception_handlers={Exception: _failed}),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
            ssl_certfile=None if tls is None else str(tls[0]),
            ssl_keyfile=None if tls is None else str(tls[1]),
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="page-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; open streams are ended."""
        self._server.should_exit = True
        self._thread.join(5.0)
        self._watch.close()
        self._socket.close()

    def _principal(self, request: Request) -> Principal | None:
        """Return the principal of a request's token."""
        return self._access.authenticate(request.headers.get("authorization", "").removeprefix("Bearer "))

    async def _stream(self, request: Request) -> Response:
        """Send the parts of the page whenever they change, until the browser leaves or the token ends."""
        principal = self._principal(request)
        if principal is None:
            return _refused(401, "the token is missing or not known to this server")
        if self._streams >= _MOST_STREAMS:
            return _refused(503, f"{_MOST_STREAMS} pages are open already: close one, or try later")
        job = request.query_params.get("job", "")[:200]
        return StreamingResponse(self._events(request, job), media_type="text/event-stream", headers=_HEADERS)

    async def _events(self, request: Request, job: str) -> AsyncIterator[str]:
        """Yield the changed parts as events of JSON."""
        sent: dict[str, str] = {}
        ended: tuple[int, str] | None = None  # version and view of the chosen job, which changes no more
        spoke = time.monotonic()
        self._streams += 1
        try:
            # The token is looked up each time: it may be taken away.
            while (principal := self._principal(request)) is not None and not self._server.should_exit:
                parts, ended = await run_in_threadpool(self._parts, principal, job, ended)
                if changed := {name: part for name, part in parts.items() if sent.get(name) != part}:
                    sent |= changed
                    spoke = time.monotonic()
                    yield f"data: {json.dumps(changed)}\n\n"
                elif time.monotonic() - spoke >= _BEAT_SECONDS:
                    spoke = time.monotonic()
                    yield ": nothing new\n\n"
                await anyio.sleep(_STREAM_SECONDS)
        finally:
            self._streams -= 1

    def _parts(
        self, principal: Principal, job: str, ended: tuple[int, str] | None
    ) -> tuple[Mapping[str, str], tuple[int, str] | None]:
        """Return the parts of the page as a principal sees them, and version and view of the chosen job once it has ended.

        The view of an ended job is taken from ``ended`` while its version is the same: an answer is read and rendered once.
        """
        caller, writes = Caller(principal, "page"), principal.role != "read"
        jobs = [each for each in self._jobs.standings(caller.sees) if principal.reaches(each["pool"])]
        trails = {each["job"]: trail for each in jobs if (trail := self._watch.trail(each["job"])) is not None}
        chosen = next((each for each in jobs if each["job"] == job), None)
        parts = {
            "who": f"{principal.name}, {principal.role}" + ("" if writes else ": read only"),
            "pools": self._pools_of(caller),
            "jobs": jobs_view(jobs, trails, writes=writes),
            "figures": figures_view(self._watch.samples()),
            "job": "" if not job else "<p>There is no such job, or it has been removed.</p>",
        }
        if chosen is None:
            return parts, None
        if ended is None or ended[0] != chosen["version"]:
            ended = chosen["version"], self._job(caller, chosen, trails.get(job), writes=writes)
        parts["job"] = ended[1]
        return parts, None if chosen["state"] in ("queued", "running") else ended

    def _job(self, caller: Caller, job: Mapping[str, Any], trail: Trail | None, *, writes: bool) -> str:
        """Return the view of one job, with its answers once it has them."""
        done, running = job["state"] == "done", job["state"] == "running"
        answers = self._result(caller, job["job"]).get("answers", ()) if done else ()
        bandwidth = self._bandwidths.of(job["pool"], job["key"]) if running else None
        return job_view(job, trail, answers, bandwidth, self._selected(job) if running else None, writes=writes)

    def _selected(self, job: Mapping[str, Any]) -> SoFar | None:
        """Return the features that the first run of a job has selected so far, once there are any."""
        try:
            found = self._jobs.find(job["job"], None)
        except FastompError:  # removed meanwhile, or its records are damaged, which the end of the job will tell
            return None
        step, asked = next(iter(found.progress), None), found.request
        if step is None or not step.features:
            return None
        names = self._names.of(asked.pool, asked.key, asked.fingerprint, step.features)
        return SoFar(names, step.selected - len(names), len(asked.requests))

    def _pools_of(self, caller: Caller) -> str:
        """Return the view of a caller's pools, listed again after a few seconds: listing opens every store."""
        moment, view = self._listed.get(caller.principal.name, (-_POOLS_SECONDS, ""))
        if time.monotonic() - moment >= _POOLS_SECONDS:
            pools = self._call(caller, "list", {}).get("pools", ())
            keys = {pool["pool"]: self._call(caller, "list", {"pool": pool["pool"]}).get("keys", ()) for pool in pools}
            view = pools_view(pools, keys)
            self._listed[caller.principal.name] = time.monotonic(), view
        return view

    def _act(self, request: Request) -> Response:
        """Cancel or resume a job, for a principal that may write."""
        principal = self._principal(request)
        if principal is None:
            return _refused(401, "the token is missing or not known to this server")
        verb = request.path_params["verb"]
        if verb not in ("cancel", "resume"):
            return _refused(404, "expected cancel or resume")
        if principal.role == "read":
            return _refused(403, f"{principal.name} has the role 'read', and this needs 'write': ask for another token")
        reply = self._call(Caller(principal, "page"), verb, {"job": request.path_params["job"]})
        return JSONResponse(reply, 400 if set(reply) == {"error"} else 200, headers=_HEADERS)

    def _answer(self, request: Request) -> Response:
        """Return the answers of a finished job as a file."""
        principal = self._principal(request)
        if principal is None:
            return _refused(401, "the token is missing or not known to this server")
        job, ending = request.path_params["job"], request.path_params["ending"]
        if ending not in _WRITERS:
            return _refused(404, f"expected one of {', '.join(_WRITERS)}")
        reply = self._result(Caller(principal, "page"), job)
        if "error" in reply:
            return JSONResponse(reply, 400, headers=_HEADERS)
        kind, write = _WRITERS[ending]
        headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{job}.{ending}"'}
        try:
            content = write(job, reply["kind"], reply["answers"])
        except ServerError as error:
            return _refused(400, str(error))
        return Response(content, media_type=kind, headers=headers)

    def _call(self, caller: Caller, operation: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the last reply of an operation."""
        return ([{}, *self._replies(caller, operation, body)])[-1]

    def _result(self, caller: Caller, job: str) -> Mapping[str, Any]:
        """Return kind and answers of a job, or the error."""
        replies = self._replies(caller, "result", {"job": job})
        if "error" in replies[-1]:
            return replies[-1]
        return {**replies[0], "answers": [answer for reply in replies for answer in reply["answers"]]}

    def _replies(self, caller: Caller, operation: str, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the replies of an operation."""
        return [decode_message(reply) for reply in self._operations.call(caller, operation, encode_message(body))]


def _json(job: str, kind: str, answers: Sequence[dict[str, Any]]) -> str:
    """Return answers as ``fastomp resume --json`` prints them."""
    if kind != "select":
        return json.dumps(decode_result(kind, answers).to_json(), allow_nan=False)
    found = [answer["json"] for answer in answers]
    return json.dumps(found[0] if len(found) == 1 else found, allow_nan=False)


def _csv(job: str, kind: str, answers: Sequence[dict[str, Any]]) -> str:
    """Return the coefficients of all answers as a table."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("answer", "order", "feature", "column", "coefficient"))
    for place, selection in enumerate(_selections(kind, answers), start=1):
        writer.writerows((place, *row) for row in selected_columns(selection))
        writer.writerows((place, "kept", column.feature, column.column, column.coef) for column in selection.kept)
        writer.writerow((place, "", "intercept", "", selection.intercept))
    return text.getvalue()


def _html(job: str, kind: str, answers: Sequence[dict[str, Any]]) -> str:
    """Return answers as a report."""
    return report_page(f"Job {job}", _selections(kind, answers))


def _selections(kind: str, answers: Sequence[dict[str, Any]]) -> Sequence[Selection]:
    """Return the selections of a job."""
    return [decode_selection(each) for each in answers] if kind == "select" else selections_of(decode_result(kind, answers))


_WRITERS: Mapping[str, tuple[str, Callable[[str, str, Sequence[dict[str, Any]]], str]]] = {
    "json": ("application/json", _json),
    "csv": ("text/csv", _csv),
    "html": ("text/html", _html),
}


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    """Return an endpoint that sends a file of this folder."""
    content = (_FOLDER / name).read_bytes()
    return lambda request: Response(content, media_type=kind, headers=_HEADERS)


def _styles(request: Request) -> Response:
    """Send the style sheets of reports and of the page."""
    page = (_FOLDER / "page.css").read_text(encoding="utf-8")
    return Response(style_sheet() + page, media_type="text/css", headers=_HEADERS)


def _refused(status: int, reason: str) -> Response:
    """Return a refusal of one sentence."""
    return JSONResponse({"error": {"message": reason}}, status, headers=_HEADERS)


def _failed(request: Request, error: Exception) -> Response:
    """Return a reply that says nothing of the error, which the log holds."""
    _log.error("the page failed", exc_info=error)
    return PlainTextResponse("the server failed at this request: see its log\n", 500, headers=_HEADERS)
