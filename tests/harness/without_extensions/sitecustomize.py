"""With this folder first in ``PYTHONPATH`` nothing compiled of ours can be imported, as where there was no compiler.

Python imports ``sitecustomize`` when it starts, in the processes that tests start too.
"""

import sys
import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))

# None is what the import system takes for a module that is known not to be there.
sys.modules.update({extension["name"]: None for extension in _PROJECT["tool"]["setuptools"]["ext-modules"]})  # type: ignore[misc]
