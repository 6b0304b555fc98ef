"""Planners: launches of one kernel each, from the shapes and dtypes of a call."""
