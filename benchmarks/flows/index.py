"""The inverted index of the demo."""

from __future__ import annotations

from flamestream_demo.inverted_index import flow

__all__ = ["flow"]
