"""Campaigns: many kernels judged by the processes or the cluster of an engine."""
