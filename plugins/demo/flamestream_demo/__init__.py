"""The job of the papers' evaluation, an incremental inverted index, as a demo."""
