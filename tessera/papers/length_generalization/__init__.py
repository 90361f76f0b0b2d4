"""Length generalisation: MQMTAR, reverse and sort, learned on short sequences and judged on long ones."""
