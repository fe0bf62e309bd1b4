"""Plugins for the length of a test: `with override("source", "mine", Mine)`."""

from __future__ import annotations

from flamecore.runtime.config.plugins import override

__all__ = ["override"]
