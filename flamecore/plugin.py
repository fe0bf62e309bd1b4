"""What a plugin module imports: `hookimpl`, and nothing else of the machinery."""

from flamecore.hookspecs import hookimpl

__all__ = ["hookimpl"]
