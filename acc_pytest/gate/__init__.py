"""Gates that change a verdict after the thresholds: baseline, known differences, lock; rows judged again."""
