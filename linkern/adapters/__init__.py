"""Where other people's kernels meet the referee: thin functions, and what is known."""
