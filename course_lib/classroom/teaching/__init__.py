"""The pages in docs/teaching: plans, and for each lesson what to say, what goes wrong, and all answers."""
