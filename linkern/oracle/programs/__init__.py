"""Programs of the operators on a tape: one function of a few lines for each."""
