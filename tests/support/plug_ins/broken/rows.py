CARDS = [
    {"id": "rows/Unknown-v0", "doc": "A field nobody knows.", "gym": "rows:Env", "colour": "red"},
    {"id": "rows/NoForm-v0", "doc": "No constructor."},
    {"id": "rows/Both-v0", "doc": "Two kinds.", "gym": "rows:Env", "aec": "rows:env"},
    {"id": "rows/Steps-v0", "doc": "A game with steps.", "aec": "rows:env", "max_steps": 3},
    {"id": "no version", "doc": "Not an ID.", "gym": "rows:Env"},
    {"id": "rows/Path-v0", "doc": "Not a path.", "gym": "rows.Env"},
    "not a row",
    {"id": "envweave/Echo-v0", "doc": "Somebody else's ID.", "gym": "rows:Env"},
    {"id": "rows/Good-v0", "doc": "Nothing wrong.", "gym": "tidy.guess:GuessEnv"},
    {"id": "CartPole-v1", "doc": "Not ours to take.", "gym": "rows:Env"},
]
