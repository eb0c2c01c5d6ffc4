"""Pure functions of the performance model. No I/O, no dataframe library."""
