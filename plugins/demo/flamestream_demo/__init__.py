"""The job of the papers' evaluation, ready to run: an incremental inverted index, its pages and its command."""
