"""Programs that call a model, as environments: an endpoint that poses as the model, and the process of the program."""
