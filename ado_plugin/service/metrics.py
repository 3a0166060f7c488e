"""Metrics for Prometheus and a health check, over plain HTTP on a separate address; off by default.

``/metrics`` is the text format 0.0.4; ``/health`` is ``ok`` (200) or the reason why the server is not healthy (503). Names of
pools, keys, jobs and principals never appear.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

__all__ = ["Figure", "Labels", "MetricsServer", "exposition"]

#: Labels of a value: pairs of name and text.
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric.

    Attributes
    ----------
    name, text : str
        Name without the prefix ``fastomp_``, and its description.
    kind : {"counter", "gauge"}
    values : mapping of labels to number
        Labels as ``(("operation", "list"),)``; ``()`` for none.
    """

    name: str
    text: str
    kind: Literal["counter", "gauge"]
    values: Mapping[Labels, float] = field(default_factory=dict)


def exposition(figures: Sequence[Figure]) -> str:
    """Return metrics in the text format of Prometheus."""
    lines = []
    for figure in figures:
        lines += [f"# HELP fastomp_{figure.name} {figure.text}", f"# TYPE fastomp_{figure.name} {figure.kind}"]
        for labels, value in sorted(figure.values.items()):
            inside = ",".join(f'{name}="{text}"' for name, text in labels)
            lines.append(f"fastomp_{figure.name}{{{inside}}} {value:g}" if inside else f"fastomp_{figure.name} {value:g}")
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
    trouble : callable
        Returns the reason why the server is not healthy, or None.
    """

    def __init__(self, host: str, port: int, collect: Callable[[], Sequence[Figure]], trouble: Callable[[], str | None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds; a silent client does not keep its thread

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._reply(200, exposition(collect()), "text/plain; version=0.0.4; charset=utf-8")
                elif self.path == "/health":
                    reason = trouble()
                    self._reply(200, "ok\n") if reason is None else self._reply(503, f"{reason}\n")
                else:
                    self._reply(404, "expected /metrics or /health\n")

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

        self._server = Server((host, port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
