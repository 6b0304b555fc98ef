"""Inputs of one call, how Hypothesis draws them, and their exact answers."""
