"""Bundles that repeat one failure on their own (`--acc-repro DIR`): a folder with tensors and one test.

view.py -> folder.py (where) -> of_pair.py, of_case.py (what) -> texts.py (the test, README, pytest.ini)
"""
