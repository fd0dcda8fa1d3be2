"""Sessions: one environment each, with numbered calls and a lease, and the table of all sessions."""
