CARDS = [
    {
        "id": "tidy/Guess-v0",
        "doc": "Guess a number.",
        "gym": "tidy.guess:GuessEnv",
        "max_steps": 3,
        "kwargs": {"highest": 4},
        "wire_kwargs": ["highest"],
    },
    {
        "id": "tidy/Arm-v0",
        "doc": "Needs an arm.",
        "gym": "tidy.guess:GuessEnv",
        "extra": "arm",
        "requires": ["arm_driver"],
    },
    {"id": "tidy/Leg-v0", "doc": "Needs a leg.", "gym": "tidy.guess:GuessEnv", "requires": ["leg_driver"]},
    {"id": "tidy/Typo-v0", "doc": "Points nowhere.", "gym": "tidy.gess:GuessEnv"},
]
