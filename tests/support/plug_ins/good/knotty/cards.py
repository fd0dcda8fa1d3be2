from envweave_gym import EnvCard


def cards():
    yield EnvCard(id="knotty/Duel-v0", doc="Draw.", parallel="knotty.duel:Duel", kwargs={"rounds": 2})
    yield EnvCard(id="knotty/Say-v0", doc="Say it.", gym="knotty.say:SayEnv")
