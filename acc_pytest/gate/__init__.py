"""Gates that change a verdict after the thresholds: baseline, known differences; rows judged again."""
