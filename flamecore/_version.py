"""The version of the distribution, in a module of its own: parts of the package need it, and the face imports them."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
