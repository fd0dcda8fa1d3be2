"""An environment of a Space, without the package of OpenEnv, so that it is installed in seconds."""
