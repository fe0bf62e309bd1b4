"""Picture of a run: event time across, the order of records down.

It shows the watermark, elements and panes. `story` notes the steps of a grouping; `svg` draws them and does not depend
on flows.
"""
