"""Pairs measured on the nodes of a cluster, while pytest stays the controller (`acc_engine = ray`).

    selected pairs -> Placement -> [Batch] -> Dispatch -> Pool -> work.perform on a node -> [Measured] -> Row

Only `ray_cluster.py` knows Ray. What runs on a node is `work.py`, and the probe of `pool.py` before that.
"""
