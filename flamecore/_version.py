"""The version of the distribution.

It has a module of its own, since parts of the package need it and `flamecore/__init__.py` imports them.
"""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
