"""A double of the MCAS server: pools as files of a directory, one ADO process per pool, value locks, real sockets.

Values begin at odd addresses. A pool's map is replaced by renaming, so the last complete value survives SIGKILL. The ADO inherits
the listening socket, as the real one does, so an orphan of it keeps the port. A call locks its value, and those that its function
loads until it ends; a reader locks a value until it has received it. Requests are counted by kind.

A connection may send ``control`` with settings, which is not counted: ``hold`` and ``release`` lock a value as another client does,
``lossy`` loses a share of the calls before or after they are carried out, ``foreign`` makes replies that the client cannot read,
``refuse_opens`` and ``hang_starts`` make the next opens fail, the latter with the whole server, and ``two_readers`` is upstream's
defect: a second reader of a value hangs, and its lock stays.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Hashable, Iterator
from pathlib import Path

_FRAME = struct.Struct("<IQ")
_KEY_NOT_FOUND, _FULL, _LOCKED, _FAIL = -52, -55, -33, -1


class Pool:
    """One pool: its file, its map, its locks and its ADO."""

    def __init__(self, folder: Path, name: str, listening: int, dies_after: int, starts: bool) -> None:
        self.path = folder / name
        self.map = json.loads((folder / f"{name}.map").read_text())
        self.shared: dict[str, set[Hashable]] = collections.defaultdict(set)
        self.exclusive: dict[str, Hashable] = {}
        self.guard, self.serial = threading.RLock(), threading.Lock()
        self.users: set[int] = set()
        script = Path(__file__).with_name("mcas_personality.py")
        self.ado = subprocess.Popen(
            [sys.executable, str(script), str(self.path), str(dies_after if starts else -1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listening],
        )
        (folder / "ado.pid").write_text(str(self.ado.pid))
        if self.ado.stdout.read(len(b"ready")) != b"ready":
            threading.Event().wait()  # "long-wait for connection": the server never notices that its ADO died

    @staticmethod
    def create(folder: Path, name: str, size: int) -> None:
        with open(folder / f"{name}.data", "wb") as file:
            file.truncate(size)
        (folder / f"{name}.map").write_text(json.dumps({"size": size, "next": 1, "values": {}}))

    def lock(self, key: str, holder: Hashable, exclusive: bool = True) -> bool:
        with self.guard:
            if key in self.exclusive or (exclusive and self.shared[key]):
                return False
            if exclusive:
                self.exclusive[key] = holder
            else:
                self.shared[key].add(holder)
            return True

    def unlock(self, holder: Hashable) -> None:
        with self.guard:
            self.exclusive = {key: other for key, other in self.exclusive.items() if other != holder}
            for holders in self.shared.values():
                holders.discard(holder)

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[bool]:
        holder = object()
        try:
            yield self.lock(key, holder)
        finally:
            self.unlock(holder)

    def put(self, key: str, data: bytes) -> int:
        with self.locked(key) as free, self.guard:
            if not free:
                return _LOCKED
            start = self._room(len(data))
            if start + len(data) + 1 > self.map["size"]:
                return _FULL
            with open(f"{self.path}.data", "r+b") as file:
                file.seek(start)
                file.write(data)
            self.map["next"] = max(self.map["next"], start + len(data))  # the highest address used so far
            self.map["values"][key] = [start, len(data)]
            self._save()
        return 0

    def _room(self, length: int) -> int:
        """Return the first odd address with ``length`` free bytes; the value that is replaced stays until then."""
        start = 1
        for first, taken in sorted(self.map["values"].values()):
            if first - start >= length + 1:
                break
            start = (first + taken) | 1
        return start

    def get(self, key: str) -> bytes | None:
        place = self.map["values"].get(key)
        if place is None:
            return None
        with open(f"{self.path}.data", "rb") as file:
            file.seek(place[0])
            return file.read(place[1])

    def erase(self, key: str) -> int:
        with self.locked(key) as free, self.guard:
            if not free:
                return _LOCKED
            if self.map["values"].pop(key, None) is None:
                return _KEY_NOT_FOUND
            self._save()
        return 0

    def invoke(self, key: str, ondemand: int, message: bytes) -> tuple[int, bytes]:
        if key not in self.map["values"]:
            self.put(key, bytes(ondemand))  # the junk key of an unknown one; the ADO then dies of it
        call = object()
        if not self.lock(key, call):
            return _LOCKED, b""
        with self.serial:
            try:
                self._send({"key": key, "place": self.map["values"][key]}, message)
                while True:
                    reply, data = self._receive()
                    if "load" not in reply:
                        break
                    # A value that another client has locked looks like one that is missing.
                    known = reply["load"] in self.map["values"] and self.lock(reply["load"], call)
                    self._send({"place": self.map["values"][reply["load"]] if known else None}, b"")
            except (OSError, struct.error):
                threading.Event().wait()  # the server never notices that its ADO died: no reply, and the locks stay
        self.unlock(call)
        return reply["status"], data

    def _send(self, header: dict, data: bytes) -> None:
        encoded = json.dumps(header).encode()
        self.ado.stdin.write(_FRAME.pack(len(encoded), len(data)) + encoded + data)
        self.ado.stdin.flush()

    def _receive(self) -> tuple[dict, bytes]:
        length, size = _FRAME.unpack(self.ado.stdout.read(_FRAME.size))
        return json.loads(self.ado.stdout.read(length)), self.ado.stdout.read(size)

    def end(self) -> None:
        self.ado.kill()
        self.ado.wait()

    def _save(self) -> None:
        partial = f"{self.path}.partial"
        Path(partial).write_text(json.dumps(self.map))
        os.replace(partial, f"{self.path}.map")


class Server:
    """All pools of a directory."""

    def __init__(self, folder: Path, port: int, dies_after: int) -> None:
        self.folder, self.dies_after = folder, dies_after
        self.pools: dict[str, Pool] = {}
        self.guard = threading.Lock()
        self.counts: collections.Counter[str] = collections.Counter()
        self.settings: dict = {"lossy": 0.0, "foreign": False, "refuse_opens": 0, "hang_starts": 0, "two_readers": False}
        self.chance = random.Random(1)
        self.hung = False
        self.listening = socket.create_server(("127.0.0.1", port))
        self.listening.set_inheritable(True)
        (folder / "port").write_text(str(self.listening.getsockname()[1]))

    def serve(self) -> None:
        while True:
            connection, _ = self.listening.accept()
            threading.Thread(target=self.attend, args=(connection,), daemon=True).start()

    def attend(self, connection: socket.socket) -> None:
        inbox, me = connection.makefile("rb"), threading.get_ident()
        try:
            while header := inbox.read(_FRAME.size):
                length, size = _FRAME.unpack(header)
                request, data = json.loads(inbox.read(length)), inbox.read(size)
                if len(data) < size:
                    break
                done = threading.Event()
                outcome: list = []

                def work(request=request, data=data, outcome=outcome, done=done) -> None:
                    outcome.append(self.control(request) if request["call"] == "control" else self.counted(me, request, data))
                    done.set()

                threading.Thread(target=work, daemon=True).start()
                while not done.wait(0.02):
                    if not _alive(connection):
                        raise ConnectionError
                status, reply = outcome[0]
                encoded = json.dumps(status).encode()
                connection.sendall(_FRAME.pack(len(encoded), len(reply)) + encoded + reply)
                for pool in list(self.pools.values()):
                    pool.unlock(("reader", me))
        except (OSError, struct.error, ValueError):
            pass
        finally:
            for name in list(self.pools):
                self.close(me, name)

    def control(self, request: dict) -> tuple[dict, bytes]:
        if "hold" in request:
            self.pools[request["pool"]].lock(request["hold"], ("held", request["hold"]), request["exclusive"])
        if "release" in request:
            self.pools[request["pool"]].unlock(("held", request["release"]))
        self.settings |= {name: value for name, value in request.items() if name in self.settings}
        if "reset" in request:
            self.counts.clear()
        return {"status": 0, "counts": dict(self.counts)}, b""

    def counted(self, me: int, request: dict, data: bytes) -> tuple[dict, bytes]:
        self.counts[request["call"]] += 1
        if self.hung:
            threading.Event().wait()
        loses = request["call"] == "invoke" and self.chance.random() < self.settings["lossy"]
        if loses and self.chance.random() < 0.5:
            return {"status": 0, "lost": True}, b""  # the request itself was lost
        status, reply = self.answer(me, request, data)
        if loses:
            return {"status": 0, "lost": True}, b""
        return status, b"" if request["call"] == "invoke" and self.settings["foreign"] else reply

    def answer(self, me: int, request: dict, data: bytes) -> tuple[dict, bytes]:
        call, name, key = request["call"], request["pool"], request.get("key", "")
        if call in ("open_pool", "create_pool"):
            return {"status": self.open(me, call, name, request)}, b""
        if call == "delete_pool":
            if name in self.pools or not (self.folder / f"{name}.map").exists():
                return {"status": _FAIL}, b""
            for suffix in ("data", "map"):
                (self.folder / f"{name}.{suffix}").unlink()
            return {"status": 0}, b""
        if call == "close_pool":
            self.close(me, name)
            return {"status": 0}, b""
        pool = self.pools[name]
        if call == "put_direct":
            return {"status": pool.put(key, data)}, b""
        if call == "erase":
            return {"status": pool.erase(key)}, b""
        if call == "invoke":
            status, reply = pool.invoke(key, request["ondemand"], data)
            return {"status": status}, reply
        found = pool.get(key)
        if found is None:
            return {"status": _KEY_NOT_FOUND}, b""
        if call == "get_direct":
            if self.settings["two_readers"] and pool.shared[key]:
                pool.lock(key, object(), exclusive=False)  # registered under the address of another: never released
                threading.Event().wait()
            if not pool.lock(key, ("reader", me), exclusive=False):
                return {"status": _FAIL}, b""
        return {"status": 0, "size": len(found)}, found if call == "get_direct" else b""

    def open(self, me: int, call: str, name: str, request: dict) -> int:
        with self.guard:
            if self.settings["refuse_opens"] > 0:
                self.settings["refuse_opens"] -= 1
                return _FAIL
            if not (self.folder / f"{name}.map").exists():
                if call == "open_pool":
                    return _FAIL
                Pool.create(self.folder, name, request["size"])
            if name not in self.pools:
                self.hung = self.settings["hang_starts"] > 0
                self.settings["hang_starts"] -= self.hung
                self.pools[name] = Pool(self.folder, name, self.listening.fileno(), self.dies_after, not self.hung)
            self.pools[name].users.add(me)
        return 0

    def close(self, me: int, name: str) -> None:
        with self.guard:
            pool = self.pools.get(name)
            if pool is None:
                return
            pool.users.discard(me)
            if not pool.users:
                del self.pools[name]
                pool.end()


def _alive(connection: socket.socket) -> bool:
    """Tell whether the client is still there."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


if __name__ == "__main__":
    Server(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).serve()
