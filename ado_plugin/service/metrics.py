"""Metrics for Prometheus and checks of the server's condition, over plain HTTP on a separate address; off by default.

``/metrics`` is the text format 0.0.4. ``/health`` says whether jobs make progress, ``/ready`` whether new calls are welcome: the
first line is ``ok`` (200) or the reason why not (503), the others are facts. No name of a pool, key, job or principal appears.
"""

from __future__ import annotations

import bisect
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["Condition", "Distribution", "Figure", "Histogram", "Labels", "MetricsServer", "exposition"]

#: Connections at a time, each with a thread.
_MOST_CONNECTIONS = 32

#: The reason why not, or None, and facts by name.
Condition: TypeAlias = tuple[str | None, Mapping[str, object]]

#: Labels of a value: pairs of name and text.
Labels = tuple[tuple[str, str], ...]


class Distribution(NamedTuple):
    """Observations in buckets.

    Attributes
    ----------
    bounds : tuple of float
        Inclusive upper bounds of the buckets, ascending.
    counts : tuple of int
        Observations in each bucket; the last one is for those above all bounds.
    total : float
        Sum of the observations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Distributions by one label, safe to observe from several threads.

    Parameters
    ----------
    bounds : tuple of float
        Inclusive upper bounds of the buckets, ascending.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._totals: dict[str, float] = {}

    def observe(self, label: str, value: float) -> None:
        """Count a value; ``label`` is one of a fixed set, never text of a client."""
        with self._lock:
            counts = self._counts.setdefault(label, [0] * (len(self._bounds) + 1))
            counts[bisect.bisect_left(self._bounds, value)] += 1
            self._totals[label] = self._totals.get(label, 0.0) + value

    def distributions(self, labels: Sequence[str]) -> dict[str, Distribution]:
        """Return the distribution of each of these labels and of all observed ones."""
        empty = [0] * (len(self._bounds) + 1)
        with self._lock:
            return {
                label: Distribution(self._bounds, tuple(self._counts.get(label, empty)), self._totals.get(label, 0.0))
                for label in {*labels, *self._counts}
            }


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric.

    Attributes
    ----------
    name, text : str
        Name without the prefix ``fastomp_``, and its description.
    kind : {"counter", "gauge", "histogram"}
    values : mapping of labels to number
        Labels as ``(("operation", "list"),)``; ``()`` for none.
    distributions : mapping of labels to Distribution
        The values of a histogram.
    """

    name: str
    text: str
    kind: Literal["counter", "gauge", "histogram"]
    values: Mapping[Labels, float] = field(default_factory=dict)
    distributions: Mapping[Labels, Distribution] = field(default_factory=dict)

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """Yield name, labels and value of each line."""
        for labels, value in sorted(self.values.items()):
            yield self.name, labels, value
        for labels, found in sorted(self.distributions.items()):
            bounds = (*(f"{bound:g}" for bound in found.bounds), "+Inf")
            for bound, count in zip(bounds, itertools.accumulate(found.counts), strict=True):
                yield f"{self.name}_bucket", (*labels, ("le", bound)), count
            yield f"{self.name}_sum", labels, found.total
            yield f"{self.name}_count", labels, sum(found.counts)


def exposition(figures: Sequence[Figure]) -> str:
    """Return metrics in the text format of Prometheus."""
    lines = []
    for figure in figures:
        lines += [f"# HELP fastomp_{figure.name} {figure.text}", f"# TYPE fastomp_{figure.name} {figure.kind}"]
        for name, labels, value in figure.samples():
            inside = ",".join(f'{label}="{text}"' for label, text in labels)
            lines.append(f"fastomp_{name}{{{inside}}} {value!r}" if inside else f"fastomp_{name} {value!r}")
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves metrics in a separate thread.

    Parameters
    ----------
    host : str
    port : int
        0 for any.
    collect : callable
        Returns the metrics.
    checks : mapping of str to callable
        By path; each returns the reason why not, or None, and facts.
    """

    def __init__(
        self, host: str, port: int, collect: Callable[[], Sequence[Figure]], checks: Mapping[str, Callable[[], Condition]]
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds; a silent client does not keep its thread

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._reply(200, exposition(collect()), "text/plain; version=0.0.4; charset=utf-8")
                elif self.path in checks:
                    reason, facts = checks[self.path]()
                    lines = [reason or "ok", *(f"{name} {value}" for name, value in facts.items())]
                    self._reply(200 if reason is None else 503, "\n".join(lines) + "\n")
                else:
                    self._reply(404, f"expected {', '.join(('/metrics', *checks))}\n")

            def _reply(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: scrapes are frequent."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True
            places = threading.Semaphore(_MOST_CONNECTIONS)

            def get_request(self) -> tuple[socket.socket, object]:
                try:
                    return super().get_request()
                except OSError:
                    time.sleep(0.1)  # without descriptors the next attempt would fail as soon
                    raise

            def process_request(self, request: Any, client_address: Any) -> None:
                if self.places.acquire(blocking=False):
                    super().process_request(request, client_address)
                else:
                    self.shutdown_request(request)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    self.places.release()

        self._server = Server((host, port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
