"""Checks of a server's configuration before the server is started: everything that this machine can say about it.

Each check is a function that yields findings; none changes anything, and none needs a server.
"""

from __future__ import annotations

import errno
import glob
import os
import platform
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ado_plugin.mcas.configuration import cores_of, read_configuration, server_program
from ado_plugin.mcas.environment import server_environment, start_command, try_plugin
from ado_plugin.mcas.finding import Finding
from ado_plugin.mcas.plugin_file import PluginFile, read_plugin
from fastomp_nvm.errors import FastompError, InputError
from fastomp_nvm.remote.address import is_loopback
from fastomp_nvm.selection.text import human_bytes
from fastomp_nvm.version import __version__

__all__ = ["check_configuration"]

Findings = Iterator[Finding]

_CONTROL_ADDRESS = "FABRIC_SERVER_ADDR"
_LEAST_ROOM = 1 << 30
_SECONDS = 60
_IN_USE = "is in use: end the server that has it, or the ADO that an ended one left behind"


def check_configuration(path: Path, folder: Path | None = None) -> Findings:
    """Yield what is right and what is wrong with a server's configuration on this machine, the start command last.

    Parameters
    ----------
    path : Path
        The JSON that the server reads.
    folder : Path, optional
        The virtual environment of ``fastomp ado install``, as if its programs stood first on the PATH.

    Raises
    ------
    InputError
        It is no configuration that a server would read.
    """
    configuration = read_configuration(path)
    shards = configuration["shards"]
    environment = server_environment(folder)
    yield Finding("configuration", "ok", f"{path}: {len(shards)} {'shard' if len(shards) == 1 else 'shards'}")
    failed = False
    for finding in _all(configuration, environment):
        failed |= finding.verdict == "failed"
        yield finding
    if not failed:
        address = shards[0].get("addr", "127.0.0.1")
        command = start_command(folder, str(server_program(configuration)), str(path.absolute()), address)
        yield Finding("start", "ok", command)


def _all(configuration: Mapping[str, Any], environment: dict[str, str]) -> Findings:
    """Yield the findings of all checks."""
    shards = configuration["shards"]
    yield from _programs(configuration)
    files: list[PluginFile] = []
    for name in dict.fromkeys(str(name) for shard in shards for name in shard["ado_plugins"]):
        yield from _plugin(name, configuration, environment, files)
    yield from _python(files, environment)
    for number, shard in enumerate(shards):
        name = "" if len(shards) == 1 else f" of shard {number}"
        yield from _cores(shard, name)
        yield from _port(shard, name)
        yield from _device(shard, configuration.get("net_providers", "verbs"), name)
        yield from _pools(shard, name)
    yield from _addresses(shards)
    yield from _exposure(shards, environment)
    yield from _leftovers()


def _programs(configuration: Mapping[str, Any]) -> Findings:
    """Look for the programs of server and ADO."""
    for path in (Path(configuration["ado_path"]), server_program(configuration)):
        if os.access(path, os.X_OK) and path.is_file():
            yield Finding("program", "ok", f"{path}")
        else:
            yield Finding("program", "failed", f"{path} is not there or cannot be run: build upstream, and set ado_path to its ado")


def _plugin(name: str, configuration: Mapping[str, Any], environment: dict[str, str], files: list[PluginFile]) -> Findings:
    """Look for a plugin where the ADO does, load it in a child process, and add its facts to ``files``."""
    libraries = Path(configuration["ado_path"]).parent.parent / "lib"
    folders = [*filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")), str(libraries)]
    path = next((found for folder in folders if (found := Path(folder, name)).is_file()), None)
    if path is None:
        yield Finding("plugin", "failed", f"{name} is neither in LD_LIBRARY_PATH nor in {libraries}: build or copy it there")
        return
    try:
        file = read_plugin(path)
    except InputError as error:
        yield Finding("plugin", "failed", str(error))
        return
    files.append(file)
    yield _loaded(path, file, {**environment, "LD_LIBRARY_PATH": ":".join(folders)})  # the ADO has loaded these libraries before
    absent = [each for each in file.fixed_libpython if not Path(each).exists()]
    if absent:
        yield Finding(
            "libpython",
            "failed",
            f"{path} opens {absent[0]}, which is not there, so that NumPy cannot be imported: set it in the source and rebuild",
        )


def _loaded(path: Path, file: PluginFile, environment: Mapping[str, str]) -> Finding:
    """Resolve the libraries and symbols of a plugin without running any of its code, and say what it was built for."""
    if file.machine != platform.machine():
        return Finding("plugin", "failed", f"{path} is for {file.machine} and this is {platform.machine()}: build it here")
    built = f"built with {f'libpython {file.libpython}' if file.libpython else 'no libpython by name'}"
    built = f"{path} {built} and {f'headers of numpy {file.numpy}' if file.numpy else 'no headers of numpy'}"
    try:
        done = subprocess.run(
            ["ldd", "-r", str(path)], capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("plugin", "note", f"{built}; whether it loads is not known ({error}): install glibc's ldd")
    missing = [
        line.strip() for line in (done.stdout + done.stderr).splitlines() if "not found" in line or "undefined symbol" in line
    ]
    if not missing:
        return Finding("plugin", "ok", f"{built}, with all libraries and symbols")
    cause = "build it again, with the libraries of its installation in LD_LIBRARY_PATH"
    if "create_ndarray_header" in missing[0]:
        cause = "upstream declares this function with 3 arguments and defines it with 4: repair the declaration and build it again"
    return Finding("plugin", "failed", f"{built}; it does not load ({missing[0].partition('(')[0].strip()}): {cause}")


def _python(plugins: list[PluginFile], environment: dict[str, str]) -> Findings:
    """Run the plugin in the Python that the ADO will take its packages from, and compare it with the plugins."""
    python = shutil.which("python3", path=environment.get("PATH"))
    if python is None:
        yield Finding(
            "python", "failed", "there is no python3 on the PATH: run 'fastomp ado install --venv DIR', and put DIR/bin first"
        )
        return
    try:
        found = try_plugin(python, environment)
    except FastompError as error:
        yield Finding("python", "failed", f"{error}: run 'fastomp ado install --venv DIR', and check with --venv DIR")
        return
    build = found["build"]
    told = f"{python}, first on the PATH: Python {found['python']}, numpy {build['numpy']}, scipy {build['scipy']}, {build['blas']}"
    if found["version"] != __version__:
        yield Finding(
            "python", "failed", f"{python} has release {found['version']} and this is {__version__}: install this one there"
        )
    elif not found["extension"]:
        yield Finding(
            "python", "note", f"{told}; without compiled kernels: install a C compiler, then run 'fastomp ado install' again"
        )
    else:
        yield Finding("python", "ok", f"{told}, compiled kernels")
    for plugin in plugins:
        minor = found["python"].rpartition(".")[0]
        if plugin.libpython not in (None, minor):
            yield Finding(
                "python",
                "failed",
                f"the plugin embeds Python {plugin.libpython} and finds packages of {minor}: give 'fastomp ado install' the option "
                f"--python python{plugin.libpython}",
            )
        yield from _numpy(plugin.numpy, build["numpy"])


def _numpy(headers: int | None, version: str) -> Findings:
    """Compare the headers that a plugin was compiled against with the numpy that it will import."""
    if headers is None:
        return
    if headers == 1 and not version.startswith("1."):
        yield Finding(
            "numpy",
            "failed",
            f"the plugin was compiled against headers of numpy 1 and would import {version}, so that its replies are empty: "
            "compile it against numpy 2, or run 'fastomp ado install' with --numpy 1",
        )
    else:
        yield Finding("numpy", "ok", f"the plugin's headers of numpy {headers} fit numpy {version}")


def _cores(shard: Mapping[str, Any], name: str) -> Findings:
    """Compare the cores of a shard and its ADO with those of this machine."""
    try:
        cores = cores_of(shard["ado_cores"])
    except InputError as error:
        yield Finding("cores", "failed", str(error))
        return
    last = (os.cpu_count() or 1) - 1
    beyond = next((core for core in (shard["core"], *cores) if core > last), None)
    if beyond is not None:
        yield Finding("cores", "failed", f"core {beyond}{name} does not exist, this machine has 0 to {last}: the server would end")
    elif shard["core"] in cores:
        yield Finding(
            "cores",
            "note",
            f"core {shard['core']}{name} is shared by the ADO and the shard, which polls: leave it out of ado_cores",
        )
    elif len(cores) == 1 and last > 1:
        yield Finding("cores", "note", f'a selection gets one core, {cores[0]}{name}: ado_cores takes ranges, such as "1-{last}"')
    else:
        yield Finding("cores", "ok", f"the shard polls on core {shard['core']}, a selection has {len(cores)}{name}")


def _port(shard: Mapping[str, Any], name: str) -> Findings:
    """Try whether the port of a shard can be listened at."""
    address, port = shard.get("addr", "127.0.0.1"), shard["port"]
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        reason = {
            errno.EADDRINUSE: _IN_USE,
            errno.EADDRNOTAVAIL: "is no address of this machine: set addr to one",
            errno.EACCES: "needs the rights of root: take a port from 1024 on",
        }.get(number or 0, f"cannot be listened at ({error}): set addr and port")
        yield Finding("port", "failed", f"{address}:{port}{name} {reason}")
    else:
        yield Finding("port", "ok", f"{address}:{port}{name} is free")


def _device(shard: Mapping[str, Any], provider: str, name: str) -> Findings:
    """Look for the network device of a shard."""
    device, folder = shard.get("net"), Path("/sys/class/infiniband" if provider == "verbs" else "/sys/class/net")
    if device is None:
        return
    there = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    if device not in there:
        yield Finding(
            "device",
            "failed",
            f"there is no device {device}{name} for {provider}, but {', '.join(there) or 'none'}: set net or net_providers",
        )
    else:
        yield Finding("device", "ok", f"{device}{name}, which clients on other hosts name in FASTOMP_MCAS_DEVICE")


def _pools(shard: Mapping[str, Any], name: str) -> Findings:
    """Look at the directories of pools."""
    if shard.get("default_backend") == "mapstore":
        if os.path.exists("/dev/xpmem"):
            yield Finding("pool", "note", f"mapstore{name} keeps nothing when the server ends: hstore does")
        else:
            yield Finding("pool", "failed", f"mapstore{name} with an ADO needs the XPMEM kernel module: load it, or use hstore")
        return
    places = shard.get("dax_config", [])
    if not places:
        yield Finding("pool", "failed", f"there is no dax_config{name}, and hstore needs one: name a directory")
    for place in places:
        yield _pool(Path(place["path"]), name)


def _pool(folder: Path, name: str) -> Finding:
    """Look at one directory of pools."""
    if not folder.exists():
        return Finding("pool", "failed", f"{folder}{name} does not exist: make the directory, or mount the device there")
    if stat.S_ISCHR(folder.stat().st_mode):
        return Finding("pool", "ok", f"{folder}{name} is a device in devdax mode")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return Finding("pool", "failed", f"{folder}{name} is no directory that this user can write: check its owner and mode")
    kind, options = _mount(folder)
    dax = any(option in ("dax", "dax=always") for option in options)
    room = shutil.disk_usage(folder).free
    pools = sorted(each.stem for each in folder.glob("*.data"))
    told = (
        f"{folder}{name} is {kind} {'mounted with DAX' if dax else 'without DAX'}, {human_bytes(room)} free, "
        f"{'pools ' + ', '.join(pools[:5]) if pools else 'no pool yet'}"
    )
    if len(pools) > 1:
        reason = "upstream without its compile-time define maps them at one address, and one may show the contents of another"
        return Finding("pool", "note", f"{told}; {reason}: keep one pool in a directory")
    if room < _LEAST_ROOM and not pools:
        return Finding("pool", "note", f"{told}: the first put makes a pool of 1 GiB unless FASTOMP_MCAS_POOL_BYTES says less")
    if kind in ("tmpfs", "ramfs"):
        return Finding("pool", "note", f"{told}: its contents end with the machine, use a disk or persistent memory to keep them")
    return Finding("pool", "ok", told)


def _mount(folder: Path) -> tuple[str, list[str]]:
    """Return the type and the options of the file system of a folder."""
    place, found = str(folder.resolve()), ("a file system", [""])
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, options, *_ = line.split()
        point = point.replace("\\040", " ").rstrip("/")
        if place == point or place.startswith(f"{point}/"):  # later mounts cover earlier ones, and lie deeper
            found = (kind, options.split(","))
    return found


def _addresses(shards: list[Mapping[str, Any]]) -> Findings:
    """Compare the base addresses of pools, which upstream maps at fixed places."""
    places = [str(place.get("addr")).lower() for shard in shards for place in shard.get("dax_config", [])]
    if len(set(places)) < len(places):
        yield Finding(
            "address", "failed", f"two directories have the base address {places[0]}: each needs its own, pools far apart"
        )
    elif len(places) > 1:
        yield Finding(
            "address",
            "note",
            "there are several directories of pools: upstream without its compile-time define maps all at one address; use one",
        )
    elif places:
        yield Finding("address", "ok", f"one directory at {places[0]}: keep one pool in it, unless upstream was built for more")


def _exposure(shards: list[Mapping[str, Any]], environment: Mapping[str, str]) -> Findings:
    """Say which networks reach the server."""
    control = environment.get(_CONTROL_ADDRESS)
    open_to = sorted({address for shard in shards if not is_loopback(address := shard.get("addr", "0.0.0.0"))})
    if open_to or (control is not None and not is_loopback(control)):
        yield Finding(
            "exposure",
            "note",
            f"the server listens at {', '.join(open_to) or control}, where anybody can run Python as its user: trust that network",
        )
    elif control is None:
        yield Finding(
            "exposure",
            "note",
            f"the control port listens at every address unless {_CONTROL_ADDRESS}=127.0.0.1 is set, as the start command does",
        )
    else:
        yield Finding("exposure", "ok", "the server listens on loopback alone")


def _leftovers() -> Findings:
    """Look for files that ended servers left behind."""
    left = [*glob.glob("/dev/shm/channel-*"), *glob.glob("/tmp/fifo.channel-*")]
    if left:
        yield Finding(
            "leftovers",
            "note",
            f"{left[0]} and {len(left) - 1} more belong to a running or an ended server: remove them if none runs",
        )
