"""Objects found by name and imported on first use.

A :class:`Table` maps names that users write (media, objectives, algorithms, transports, commands) to
``"package.module:attribute"`` strings; a :class:`Lazy` holds one such string; :func:`lazily` serves the public names of a package
from its modules. Each table is defined next to the contract that its
entries implement and has that contract as its type, so a lookup needs no cast, this package imports no other package of the
project, and an optional library is imported only where it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, cast

from fastomp_nvm.errors import RequestError, UnavailableError, how_to_install, near

__all__ = ["Lazy", "Table", "lazily"]

T = TypeVar("T")


class Lazy(Generic[T]):
    """An object of another module, imported by ``load``.

    Parameters
    ----------
    target : str
        ``"package.module:attribute"``.
    """

    def __init__(self, target: str) -> None:
        self.target = target

    def load(self) -> T:
        """Import the module and return the object."""
        module, _, name = self.target.partition(":")
        try:
            return cast("T", getattr(importlib.import_module(module), name))
        except ModuleNotFoundError as error:
            missing = (error.name or module).partition(".")[0]
            remedy = "install fastomp again" if missing == module.partition(".")[0] else how_to_install(missing)
            raise UnavailableError(f"this needs the package {missing!r}, which is not installed here: {remedy}") from error
        except ImportError as error:  # an installed package is broken or built for another release of a dependency
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise UnavailableError(
                f"{module} cannot be loaded ({reason}): install compatible releases of its dependencies"
            ) from error


class Table(dict[str, str], Generic[T]):
    """Objects by name: a mapping of names to ``"package.module:attribute"``, and ``load`` to get an object.

    Parameters
    ----------
    kind : str
        Kind of the objects, for messages: ``"objective"``, ``"medium"``.
    targets : mapping of str to str
        Name to ``"package.module:attribute"``.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str, targets: Mapping[str, str]) -> None:
        super().__init__(sorted(targets.items()))
        self.kind = kind

    def check(self, name: object) -> None:
        """Raise ``RequestError`` with the known names when ``name`` is unknown."""
        if name not in self:
            hint = near(name, self) if isinstance(name, str) else ""
            raise RequestError(f"unknown {self.kind} {name!r}{hint}: expected one of {', '.join(self)}")

    def load(self, name: str) -> T:
        """Import and return the object called ``name``."""
        if name not in self:
            self.check(name)
        return Lazy[T](self[name]).load()


def lazily(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package that imports each of its public names on first use.

    Parameters
    ----------
    package : str
    modules : mapping of str to sequence of str
        Module of the package -> the public names it defines.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = Lazy(f"{package}.{home[name]}:{name}").load()
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    return load
