"""Runs: a plan, the loop over checks, the search, and their results as data."""
