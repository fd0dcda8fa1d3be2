"""GSM8K: word problems, answered with a number or by choosing an option."""
