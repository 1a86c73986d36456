"""Root analysis: which failing pair is a root and which inherits, and what a whole run says.

    rows, diagnosis = run.run(plan, judge_of)

does all of it in one process; a session of pytest does the same pair by pair (`inheritance.Inheritance`)
and at the end (`summary.Ledger`). Nothing is imported here: to sum up needs no torch.
"""
