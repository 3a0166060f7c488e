"""A Python function named in a description as ``module:function``."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastomp_nvm.arrays import IndexArray
from fastomp_nvm.errors import ConstraintError

__all__ = ["NamedFunction"]


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function named by the user, imported on first use in each process.

    Attributes
    ----------
    target : str
        ``module:function``.
    folder : str or None
        Folder searched for the module before ``sys.path``.
    names : tuple of str or None
        Names of all features; when given, the function takes a list of names instead of an array of indices.
    """

    target: str
    folder: str | None = None
    names: tuple[str, ...] | None = None

    def load(self) -> Callable[[Any], Any]:
        """Import the function, once per process."""
        return _import_function(self.target, self.folder)

    def __call__(self, features: IndexArray) -> Any:
        """Call the function on indices or on names."""
        return self.load()(features if self.names is None else [self.names[feature] for feature in features])


@functools.cache
def _import_function(target: str, folder: str | None) -> Callable[[Any], Any]:
    """Import ``module:function``, looking in ``folder`` first."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConstraintError(f"{target!r} names no function: expected module:function")
    path = sys.path[:]
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise any error
        raise ConstraintError(f"{target!r} cannot be imported ({error}): check the name and the folder") from error
    finally:
        sys.path[:] = path
    if not callable(function):
        raise ConstraintError(f"{target!r} is a {type(function).__name__}: expected a function")
    return function
