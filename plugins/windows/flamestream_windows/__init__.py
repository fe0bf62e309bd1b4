"""Windows, triggers and watermarks: event time cut into panes.

The same in every run, with any number of workers.

    import flamestream_windows as w
    from flamestream_windows import aggregates as agg, triggers as t, watermarks

The words for windows are here, and in `flamestream_windows.windows`.
"""

from flamestream_windows.windows import (
    Dropped,
    List,
    Map,
    OrderedList,
    Pane,
    Panes,
    Set,
    Stamped,
    StatefulFn,
    Timed,
    TimedKeyed,
    Timer,
    Timing,
    Told,
    Value,
    Window,
    Windowed,
    WindowFn,
    calendar,
    event_time,
    fixed,
    sessions,
    sliding,
    whole,
)

__all__ = [
    "Dropped",
    "List",
    "Map",
    "OrderedList",
    "Pane",
    "Panes",
    "Set",
    "Stamped",
    "StatefulFn",
    "Timed",
    "TimedKeyed",
    "Timer",
    "Timing",
    "Told",
    "Value",
    "Window",
    "WindowFn",
    "Windowed",
    "calendar",
    "event_time",
    "fixed",
    "sessions",
    "sliding",
    "whole",
]
