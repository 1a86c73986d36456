"""`--acc-html`: all rows of a run as one self-contained page."""
