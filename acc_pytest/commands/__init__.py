"""The subcommands of `acc`, one module each: `add(commands)` registers it, its `run` does the work."""
