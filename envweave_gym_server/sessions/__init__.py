"""Sessions: one environment each, its numbered calls, and the table of all of them."""
