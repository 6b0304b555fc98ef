"""What is claimed of a target: its operator, and its declared contract."""
