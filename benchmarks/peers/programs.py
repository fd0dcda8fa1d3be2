"""What all executors run."""

CODE = {"one": "1 + 1", "loop": "x = 0\nfor i in range(100000):\n    x += i * i % 7\nx"}
