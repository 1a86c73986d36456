"""Single operators checked: an operation CSV or a dump in, one row an output out.

    entries = listed(sources) -> Entry -> prepare(entry) -> Case -> run_case(case, standard) -> [Row]

Listing needs neither torch nor the tensors, so that ten thousand rows are listed in seconds; a case looks
for its files, computes and judges when its test runs.
"""
