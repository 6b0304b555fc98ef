"""Influence maps: results of a target entry by entry, beside their exact values."""
