"""The claims of a target: its operator and its declared contract."""
