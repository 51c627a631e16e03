"""The planner: which runs, and how many, train together in one program; what that costs."""
