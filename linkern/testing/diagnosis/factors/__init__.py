"""Factors: measured entries as the shortest formula of the exact ones."""
