"""Word count: every update comes out, once and in order.

cat FILE | flamestream run word_count.py -w 4 --source lines=stdin --sink counts=stdout
"""

import flamecore as fc

flow = fc.Flow("word-count")
(
    flow.source("lines", str)
    .flat_map(str.split)
    .key_by(lambda word: word)
    .count()  # drifting state: every update comes out, in order
    .sink("counts")
)
