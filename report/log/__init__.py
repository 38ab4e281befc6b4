"""Reading of logs: lines, the runs that they belong to, and a run's record with curves of bounded size."""
