"""Planners: from the shapes and dtypes of a call to launches of one kernel each."""
