"""The optional compiled extension.

``extension`` is the module described by ``_native.pyi``, or None where it was not built: code that uses it tests
``if native.extension:`` and otherwise computes the same in Python. Tests switch it off by setting ``extension`` to None.
"""

from __future__ import annotations

try:
    from fastomp_nvm.native import _native as extension
except ImportError:  # installed without a C compiler
    extension = None  # type: ignore[assignment]  # mypy has no optional modules; truth tests narrow correctly

__all__ = ["extension"]
