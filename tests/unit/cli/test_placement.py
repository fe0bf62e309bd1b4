"""The table of a job's placement."""

from __future__ import annotations

from flamecore.cli.placement import placement_lines


def test_a_table_shows_loads_what_would_change_and_why() -> None:
    apart = {"busy": 0.6, "fronts": ["lines a", "lines b", "lines c"], "key_groups": []}
    facts = {
        "verdict": "the job is moving its parts",
        "workers": {
            "worker/0": {"busy": 0.3, "fronts": ["lines a"], "of_fronts": 0.3, "key_groups": [], "would_be": apart},
            "worker/1": {
                "busy": 1.0,
                "fronts": ["lines b", "lines c"],
                "of_fronts": 0.25,
                "key_groups": [0, 127],
                "would_be": {"busy": 0.75, "fronts": [], "key_groups": [0, 127]},
            },
        },
        "hot_groups": {"17": {"owner": 1, "share": 0.4, "key": "'the'"}},
    }
    assert list(placement_lines(facts)) == [
        "worker    busy  of fronts  fronts            key groups  would be  fronts                       key groups",
        "worker/0  30%   30%        lines a           -           60%       lines a, lines b and 1 more  =",
        "worker/1  100%  25%        lines b, lines c  0 to 127    75%       -                            =",
        "hot: key group 17 is 40% of the load of worker/1, and 'the' its most costly key",
        "the job is moving its parts",
    ]


def test_only_the_reason_is_shown_while_nothing_is_measured() -> None:
    assert list(placement_lines({"verdict": "the loads have not been measured yet"})) == [
        "the loads have not been measured yet"
    ]
