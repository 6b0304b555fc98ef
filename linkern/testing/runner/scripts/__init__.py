"""Scripts that show a counterexample again; `reproduce` fills in their constants.

They run by themselves, so they import nothing of linkern.
"""
