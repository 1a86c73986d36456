"""For this repository's own tests only: the plugin that drives pytest from inside pytest."""

pytest_plugins = ["pytester"]
