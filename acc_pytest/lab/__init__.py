"""Laboratory: ATB graphs on the CPU, demos, strategies of hypothesis. Nothing that compares imports it."""
