"""The planner: which runs train together in one program, and what that costs."""
