"""Windows, triggers and watermarks: what happens in event time, cut into panes, the same in every run."""
