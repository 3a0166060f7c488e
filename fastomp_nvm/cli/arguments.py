"""Arguments that several commands share, and the objects that they stand for."""

from __future__ import annotations

import argparse
import os
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fastomp_nvm.algorithms.table import ALGORITHMS
from fastomp_nvm.cli.covariates import add_covariates_arguments, covariates_of
from fastomp_nvm.cli.output import add_progress_argument
from fastomp_nvm.errors import InputError, RequestError
from fastomp_nvm.matrix.checksum import CHECKS, Check
from fastomp_nvm.matrix.reader import WAYS
from fastomp_nvm.objectives.table import OBJECTIVES
from fastomp_nvm.remote.address import is_remote
from fastomp_nvm.selection.request import RequestFields
from fastomp_nvm.selection.source import Load, Way
from fastomp_nvm.stores.builders import READ_TARGET
from fastomp_nvm.stores.contract import FeatureStore
from fastomp_nvm.stores.open import open_store
from fastomp_nvm.stores.url import StoreURL

if TYPE_CHECKING:
    from fastomp_nvm.remote.client import Client

__all__ = [
    "LocalRequest",
    "Reading",
    "add_allow_infeasible_argument",
    "add_connection_arguments",
    "add_json_argument",
    "add_ray_argument",
    "add_replace_argument",
    "add_request_arguments",
    "add_store_argument",
    "add_store_arguments",
    "add_threads_argument",
    "connected",
    "open_local",
    "opened_request",
    "refuse_sweep_settings",
    "request_fields",
    "shard_counts",
]


_REQUEST = "what to select"

#: Values of the options that may take several.
_METAVARS = {"k": "K", "epsilon": "X", "tau": "X|auto", "ridge": "X"}


class Reading(TypedDict):
    """Keyword arguments of ``select``, ``grid`` and the like that say how to read the store."""

    threads: int | None
    verify: bool
    load: Load | None
    io: Way | None
    check: Check | None


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the store and how to read it."""
    add_store_argument(parser)
    add_json_argument(parser)
    _group(parser, _REQUEST)  # shown first
    group = _group(parser, "how to read the store")
    add_threads_argument(group)
    group.add_argument("--load", choices=("dram",), help="copy the store into memory first (default: read it in place)")
    group.add_argument(
        "--tier-load",
        metavar="dram|DIR",
        help="copy the int8 tier alone into memory first, or into a file in DIR that later commands use again (default: neither)",
    )
    group.add_argument(
        "--io",
        choices=WAYS,
        help="way to read files outside the page cache: direct (bypassing it), mmap, or auto (default); the answer is the same",
    )
    group.add_argument(
        "--check",
        choices=CHECKS,
        help="when to compare columns with their checksums: when they are first read since the store was changed (default first), "
        "always, or never",
    )
    group.add_argument(
        "--maf", type=float, metavar="X", help="genotypes (plink://): leave out variants with a rarer minor allele (default: none)"
    )
    group.add_argument(
        "--missing-rate",
        type=float,
        metavar="X",
        help="genotypes (plink://): leave out variants of which more genotypes are missing (default: none)",
    )
    group.add_argument("--verify", action="store_true", help="check every block against its checksum first")
    add_ray_argument(group)
    add_progress_argument(parser)


def add_store_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the store."""
    parser.add_argument("store", metavar="STORE", help="store URL or path")


def add_json_argument(parser: argparse._ActionsContainer) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")


def add_threads_argument(parser: argparse._ActionsContainer) -> None:
    """Declare ``--threads``."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of a sweep; the answer does not depend on it (default: as many as cores)"
    )


def add_replace_argument(parser: argparse._ActionsContainer) -> None:
    """Declare ``--replace``."""
    parser.add_argument("--replace", action="store_true", help="replace a store or file that exists")


def add_allow_infeasible_argument(parser: argparse._ActionsContainer) -> None:
    """Declare ``--allow-infeasible``."""
    parser.add_argument("--allow-infeasible", action="store_true", help="exit 0 even if the answer breaks the constraint")


def add_request_arguments(parser: argparse.ArgumentParser, several: Collection[str] = ()) -> None:
    """Declare the fields of ``SelectionRequest``, one option each; those named in ``several`` take comma-separated values."""
    kinds: dict[str, Callable[[str], Any]] = {"k": int, "epsilon": float, "tau": _tau, "ridge": float}
    for name in several:
        kinds[name] = _listed(kinds[name])
    metavars = {name: f"{metavar},..." if name in several else metavar for name, metavar in _METAVARS.items()}
    add = _group(parser, _REQUEST).add_argument

    def action(name: str) -> str:
        """Return the action of an option: one that takes several values takes them in several options, too."""
        return "extend" if name in several else "store"

    sizes = "most features to select, several numbers with commas" if "k" in several else "most features to select"
    add("--k", type=kinds["k"], action=action("k"), metavar=metavars["k"], help=f"{sizes} (default: as the constraint allows)")
    add("--algorithm", metavar="NAME", help=f"one of {', '.join(ALGORITHMS)}, or auto: by shape and cost (default fast_omp)")
    add(
        "--quality",
        metavar="fast|verified|best",
        help="verified: never below full greedy; best: exchanged until no exchange helps; both take more passes (default fast)",
    )
    add(
        "--objective",
        metavar="NAME",
        help=f"one of {', '.join(OBJECTIVES)}, or auto: logistic for two classes, else linear (default auto)",
    )
    add("--constraint", type=Path, metavar="FILE.yaml", help="constraint file; see 'fastomp help constraints' (default: --k alone)")
    add(
        "--target",
        metavar="NAME|FILE",
        help="target, feature or file that is the response; ./FILE forces a file; FILE:COLUMN is joined to genotypes by FID, IID "
        "(default: the store's first target)",
    )
    add("--weights", metavar="COL|FILE", help="column or file with a weight per observation; zero leaves one out (default: all 1)")
    add("--offset", metavar="COL|FILE", help="column or file with a given part of the linear predictor (default: none)")
    add("--exclude", action="append", metavar="NAME", help="feature never to select; may be repeated (default: none)")
    add(
        "--keep",
        type=_listed(str),
        action="extend",
        metavar="NAME,...",
        help='features that every model has, or patterns such as "pc_*": unpenalised, outside --k and constraint (default: none)',
    )
    add("--keep-inside", action="store_true", help="count kept features for --k and the constraint")
    add_covariates_arguments(_group(parser, _REQUEST))
    add(
        "--epsilon",
        type=kinds["epsilon"],
        action=action("epsilon"),
        metavar=metavars["epsilon"],
        help="accuracy: about 1/epsilon passes (default 0.1)",
    )
    add(
        "--tau",
        type=kinds["tau"],
        action=action("tau"),
        metavar=metavars["tau"],
        help="the m/M of the threshold: higher is choosier (default 0.5); auto tries several in the same sweeps, keeps the best",
    )
    add("--seed", type=int, metavar="N", help="seed of all random choices (default 0)")
    add("--until", metavar="paper|full", help="paper: at most ceil(1/epsilon) outer iterations (default); full: until maximal")
    add("--polish", metavar="pool|none", help="pool: exact greedy over the gathered columns, better set kept (default); none")
    add("--skip-weak", action="store_true", help="skip sequence elements that fell below the threshold (variant)")
    add("--plain", action="store_true", help="sds_omp and sds_ma: one pass per feature (default: fewer where faster, same answer)")
    add("--certificate", action="store_true", help="bound the distance from the optimum by one more pass")
    add("--lambda-min", type=float, metavar="X", help="smallest eigenvalue that the certificate may assume (default: none assumed)")
    add(
        "--ridge",
        type=kinds["ridge"],
        action=action("ridge"),
        metavar=metavars["ridge"],
        help="penalty on squared standardised coefficients (default linear 0, GLMs 1e-4)",
    )
    add("--test-fraction", type=float, metavar="F", help="hold out this share of observations and score on them (default: none)")
    add("--tier", metavar="auto|int8|exact", help="what full passes read: int8, exact, or auto (default); the answer is the same")
    add(
        "--gram",
        metavar="auto|never",
        help="auto (default): several selections over tall data share the Gram matrices of one pass where that is less work; never",
    )
    add(
        "--gather-bytes",
        type=int,
        metavar="N",
        help="memory for gathered columns (default three fifths of what is free, at most 2.75 GiB)",
    )
    add(
        "--standardize",
        action=argparse.BooleanOptionalAction,
        help="standardise columns and fit an intercept (default), or take the columns as they are",
    )


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a connection to a server."""
    group = parser.add_argument_group("stores on a server (grpc://host:port/pool/key, grpc+tls://..., mcas://...)")
    group.add_argument(
        "--token-file", type=Path, metavar="F", help="file with the token (default: FASTOMP_TOKEN, or that of a local server)"
    )
    group.add_argument(
        "--tls-ca",
        type=Path,
        metavar="F",
        help="authority of the server's certificate, PEM (default: FASTOMP_TLS_CA, or the system's)",
    )
    group.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds to wait for an answer (default 30)")
    group.add_argument("--insecure", action="store_true", help="send the token in clear to another machine")


def add_ray_argument(parser: argparse._ActionsContainer) -> None:
    """Declare the Ray cluster of a ``cluster://`` store."""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="Ray cluster of the shards of a cluster:// store (HOST:PORT, or auto; default: Ray is started on this machine)",
    )


def connected(arguments: argparse.Namespace, url: str | None = None) -> Client:
    """Connect to the server that ``url`` names, ``arguments.store`` by default."""
    from fastomp_nvm.remote.client import connect

    url = arguments.store if url is None else url
    if not is_remote(url):
        raise InputError(f"{url!r} is not a server: expected grpc://host:port or the like")
    token = None
    if arguments.token_file is not None:
        try:
            token = arguments.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise InputError(f"the token file {arguments.token_file} cannot be read ({reason}): check its path") from error
    return connect(url, token=token, tls_ca=arguments.tls_ca, timeout=arguments.timeout, insecure=arguments.insecure)


def open_local(url: str, tier_folder: str | None = None) -> FeatureStore:
    """Open a store of this machine; its int8 tier is kept in ``tier_folder`` if that is given."""
    if is_remote(url):
        raise InputError(f"{url} is on a server, and this command reads stores of this machine: run it where the store is")
    if tier_folder is not None:
        if "://" not in url:
            url = f"mmap://{urllib.parse.quote(os.path.abspath(url))}"
        url += f"{'&' if '?' in url else '?'}tier={urllib.parse.quote(os.path.abspath(tier_folder))}"
    return open_store(url)


@dataclass(frozen=True, slots=True, eq=False)
class LocalRequest:
    """A request on a store of this machine.

    Attributes
    ----------
    store : FeatureStore
    fields : RequestFields
    response : object
        Values of ``--target FILE``, otherwise None.
    reading : Reading
    """

    store: FeatureStore
    fields: RequestFields
    response: object
    reading: Reading


@contextmanager
def opened_request(arguments: argparse.Namespace) -> Iterator[LocalRequest]:
    """Open the store of this machine that a command names and yield the request on it."""
    if arguments.threads is not None or arguments.io is not None or arguments.check is not None:
        refuse_sweep_settings(arguments.store, arguments)
    load: Load | None = arguments.load or ("tier" if arguments.tier_load == "dram" else None)
    reading: Reading = {
        "threads": arguments.threads,
        "verify": arguments.verify,
        "load": load,
        "io": arguments.io,
        "check": arguments.check,
    }
    with open_local(_with_filters(arguments), None if arguments.tier_load == "dram" else arguments.tier_load) as store:
        fields, response = request_fields(
            arguments, lambda name: name in store.targets or name in store.names, lambda: store.layout.n_obs
        )
        yield LocalRequest(store, fields, response, reading)


def _with_filters(arguments: argparse.Namespace) -> str:
    """Return the store's URL with the filters of genotypes, and with ``--target FILE:COLUMN`` in place of the request's target."""
    url, target = arguments.store, arguments.target or ""
    given = {name: getattr(arguments, name.replace("-", "_")) for name in ("maf", "missing-rate")}
    found = {name: f"{value:g}" for name, value in given.items() if value is not None}
    genotypes = StoreURL.parse(url).scheme == "plink"
    if found and not genotypes:
        raise RequestError(f"--{next(iter(found))} is for genotypes in place (plink:///path), and {url} holds none: leave it out")
    if genotypes and ":" in target:
        found["target"], arguments.target = target, None
    if not found:
        return str(url)
    if "://" not in url and not url.startswith("plink:"):
        url = f"plink://{urllib.parse.quote(os.path.abspath(url))}"
    return f"{url}{'&' if '?' in url else '?'}{urllib.parse.urlencode(found)}"


def refuse_sweep_settings(store: str, arguments: argparse.Namespace) -> None:
    """Refuse settings of this machine's sweeps for a ``cluster://`` store, whose shards sweep on their own machines."""
    if StoreURL.parse(store).scheme == "cluster":
        for option in ("threads", "io", "check"):
            if getattr(arguments, option, None) is not None:
                raise RequestError(
                    f"--{option} is for sweeps of this machine, and the shards of {store} are swept by their own: leave it out"
                )


def request_fields(
    arguments: argparse.Namespace, has_name: Callable[[str], bool], n_obs: Callable[[], int]
) -> tuple[RequestFields, object]:
    """Return the fields of the request, and the response if it is in a file.

    Parameters
    ----------
    arguments : argparse.Namespace
    has_name : callable
        Returns whether the store has a target or feature of that name, which wins over a file; ``./FILE`` forces the file.
    n_obs : callable
        Returns the number of observations.
    """
    fields: RequestFields = {}
    for name in RequestFields.__annotations__:
        if getattr(arguments, name) is not None:
            fields[name] = getattr(arguments, name)  # type: ignore[literal-required]
    for name in ("weights", "offset"):
        given = getattr(arguments, name)
        if given is not None and not has_name(given):
            if not os.path.isfile(given):
                raise InputError(f"there is no column and no file {given} to take the {name} from (--{name})")
            fields[name] = READ_TARGET.load()(given, n_obs())[1]  # type: ignore[literal-required]
    fields.pop("covariates", None)
    if (covariates := covariates_of(arguments)) is not None:
        fields["covariates"] = covariates
    target = arguments.target
    if target is not None and os.path.isfile(target) and not has_name(target):
        del fields["target"]
        return fields, READ_TARGET.load()(target, n_obs())[1]
    return fields, None


def shard_counts(text: str) -> int | list[float]:
    """Return the number of shards to make, or the share of each."""
    try:
        return [float(part) for part in text.split(",")] if "," in text else int(text)
    except ValueError as error:
        raise RequestError(f"{text!r} does not say how many shards to make: expected a number, or shares such as 2,1,1") from error


def _group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the group of options with this title, a new one unless it exists."""
    return next((group for group in parser._action_groups if group.title == title), None) or parser.add_argument_group(title)


def _tau(text: str) -> float | str:
    """Return a number or ``auto``."""
    return "auto" if text == "auto" else float(text)


_tau.__name__ = "number or auto"  # argparse names it in its error


def _listed(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that reads comma-separated values, each by ``convert``."""

    def values(text: str) -> list[Any]:
        return [convert(part) for part in text.split(",")]

    values.__name__ = f"comma-separated {convert.__name__.strip('_')}"  # argparse names it in its error
    return values
