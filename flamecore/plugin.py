"""What a plugin module imports: `hookimpl`, and nothing else of the machinery."""

from flamecore.abc.hooks import hookimpl

__all__ = ["hookimpl"]
