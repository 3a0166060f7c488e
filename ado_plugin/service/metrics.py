"""Metrics for Prometheus and checks of the server's condition, over plain HTTP on a separate address; off by default.

``/metrics`` is the text format 0.0.4. ``/health`` says whether jobs make progress, ``/ready`` whether new calls are welcome: the
first line is ``ok`` (200) or the reason why not (503), the others are facts. No name of a pool, key, job or principal appears.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

__all__ = ["Condition", "Figure", "Labels", "MetricsServer", "exposition"]

#: Connections at a time, each with a thread.
_MOST_CONNECTIONS = 32

#: The reason why not, or None, and facts by name.
Condition: TypeAlias = tuple[str | None, Mapping[str, object]]

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
