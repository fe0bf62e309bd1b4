"""What a flow that ran in a program has put out."""

from __future__ import annotations

from typing import Any

from flamecore.stats import JobReport, JobStats


class Outputs(dict[str, list[Any]]):
    """For each sink the list of its outputs, in order; empty for a sink that another driver was configured for.

    Attributes:
        report: How the job ended.
    """

    report: JobReport = JobReport(JobStats())

    @property
    def stats(self) -> JobStats:
        """Counts and latency of the job."""
        return self.report.stats
