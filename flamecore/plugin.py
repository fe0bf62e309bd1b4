"""The import of a plugin module: `hookimpl`, and no other part of the machinery."""

from flamecore.abc.hooks import hookimpl

__all__ = ["hookimpl"]
