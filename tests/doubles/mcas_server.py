"""A double of the MCAS server: pools as files of a directory, one ADO process per pool, key locks, real sockets.

Values begin at odd addresses. A pool's map is replaced by renaming, so the last complete value survives SIGKILL. The ADO inherits
the listening socket, as the real one does, so an orphan of it keeps the port.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

_FRAME = struct.Struct("<IQ")
_KEY_NOT_FOUND, _LOCKED, _FAIL = -52, -33, -1


class Pool:
    """One pool: its file, its map, its locks and its ADO."""

    def __init__(self, folder: Path, name: str, listening: int, dies_after: int) -> None:
        self.path = folder / name
        self.map = json.loads((folder / f"{name}.map").read_text())
        self.locks: set[str] = set()
        self.guard, self.serial = threading.Lock(), threading.Lock()
        self.users: set[int] = set()
        script = Path(__file__).with_name("mcas_personality.py")
        self.ado = subprocess.Popen(
            [sys.executable, str(script), str(self.path), str(dies_after)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listening],
        )
        (folder / "ado.pid").write_text(str(self.ado.pid))
        self.ado.stdout.read(len(b"ready"))

    @staticmethod
    def create(folder: Path, name: str, size: int) -> None:
        with open(folder / f"{name}.data", "wb") as file:
            file.truncate(size)
        (folder / f"{name}.map").write_text(json.dumps({"size": size, "next": 1, "values": {}}))

    def put(self, key: str, data: bytes) -> int:
        with self.guard:
            start = self.map["next"]
            if start + len(data) + 1 > self.map["size"]:
                return _FAIL
            with open(f"{self.path}.data", "r+b") as file:
                file.seek(start)
                file.write(data)
            self.map["next"] = (start + len(data)) | 1  # the next odd address
            self.map["values"][key] = [start, len(data)]
            self._save()
        return 0

    def get(self, key: str) -> bytes | None:
        place = self.map["values"].get(key)
        if place is None:
            return None
        with open(f"{self.path}.data", "rb") as file:
            file.seek(place[0])
            return file.read(place[1])

    def erase(self, key: str) -> int:
        with self.guard:
            if key in self.locks:
                return _LOCKED
            if self.map["values"].pop(key, None) is None:
                return _KEY_NOT_FOUND
            self._save()
        return 0

    def invoke(self, key: str, ondemand: int, message: bytes) -> tuple[int, bytes]:
        with self.guard:
            if key in self.locks:
                return _LOCKED, b""
            self.locks.add(key)
        if key not in self.map["values"]:
            self.put(key, bytes(ondemand))  # the junk key of an unknown one; the ADO then dies of it
        with self.serial:
            encoded = key.encode()
            try:
                self.ado.stdin.write(_FRAME.pack(len(encoded), len(message)) + encoded + message)
                self.ado.stdin.flush()
                length, size = _FRAME.unpack(self.ado.stdout.read(_FRAME.size))
                status = json.loads(self.ado.stdout.read(length))["status"]
                data = self.ado.stdout.read(size)
            except (OSError, struct.error):
                threading.Event().wait()  # the server never notices that its ADO died: no reply, and the key stays locked
        with self.guard:
            self.locks.discard(key)
        return status, data

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
                    outcome.append(self.answer(me, request, data))
                    done.set()

                threading.Thread(target=work, daemon=True).start()
                while not done.wait(0.02):
                    if not _alive(connection):
                        raise ConnectionError
                status, reply = outcome[0]
                encoded = json.dumps(status).encode()
                connection.sendall(_FRAME.pack(len(encoded), len(reply)) + encoded + reply)
        except (OSError, struct.error, ValueError):
            pass
        finally:
            for name in list(self.pools):
                self.close(me, name)

    def answer(self, me: int, request: dict, data: bytes) -> tuple[dict, bytes]:
        call, name, key = request["call"], request["pool"], request.get("key", "")
        if call in ("open_pool", "create_pool"):
            with self.guard:
                if not (self.folder / f"{name}.map").exists():
                    if call == "open_pool":
                        return {"status": _FAIL}, b""
                    Pool.create(self.folder, name, request["size"])
                if name not in self.pools:
                    self.pools[name] = Pool(self.folder, name, self.listening.fileno(), self.dies_after)
                self.pools[name].users.add(me)
            return {"status": 0}, b""
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
        if call == "get_direct" and key in pool.locks:
            return {"status": _FAIL}, b""
        return {"status": 0, "size": len(found)}, found if call == "get_direct" else b""

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
