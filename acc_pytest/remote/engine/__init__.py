"""Pairs measured on the nodes of a cluster, while pytest stays the controller (`acc_engine = ray`).

    selected pairs -> Placement -> [Batch] -> Dispatch -> Pool -> work.perform on a node -> [Measured] -> Row

Only `ray_pool.py` knows Ray. What runs on a node is `work.py`, and `probing.py` before that.
"""
