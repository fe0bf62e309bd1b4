"""Inverted index of the demo, with pages split into words before the first key.

The readers of the pages split them.
"""

from __future__ import annotations

import flamecore as fc
from flamestream_demo.inverted_index import index_word, number_words, tokenize, tokenized_id, word_of
from flamestream_demo.pages import Page
from flamestream_demo.postings import EMPTY

flow = fc.Flow("inverted-index")
(
    flow.source("pages", Page)
    .map(tokenize)
    .key_by(tokenized_id)
    .stateful_map(0, number_words, name="versions")
    .key_by(word_of)
    .stateful_map(EMPTY, index_word, name="indexer")
    .sink("index")
)
