"""Workloads that go into a run, and the records and metrics that come out."""
