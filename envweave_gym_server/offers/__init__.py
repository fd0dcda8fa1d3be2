"""What a server offers: its IDs, what a client may send to each, and what each is like."""
