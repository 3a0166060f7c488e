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
    """A function of a module named by the user, imported on first use, here or in a worker.

    Attributes
    ----------
    target : str
        ``module:function``.
    folder : str or None
        Where to look for the module before the usual places.
    names : tuple of str or None
        When given, the function is handed a list of names instead of an array of indices.
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
    except Exception as error:  # a module of the user's may fail in any way
        raise ConstraintError(f"{target!r} cannot be imported ({error}): check the name and the folder") from error
    finally:
        sys.path[:] = path
    if not callable(function):
        raise ConstraintError(f"{target!r} is a {type(function).__name__}: expected a function")
    return function
