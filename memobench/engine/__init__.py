"""The engine: one loop trains every model that is trained step by step. Touches no files.

A **lane** is a place among those that one compiled program trains side by side. It holds one model
on one subset of one task instance under one schedule until that is done, and then another. All that
tells lanes apart is data: initial weights, opt_state, number of steps taken, learning rate of every
step, batches, which instance, how many of its examples. Only the `Signature` and the number of
lanes decide a compilation.

A **job** is what a lane trains: a run, or one trial of a search. A **policy** is what a method does
with its jobs: which comes next, what a step reads, what follows from an evaluation. Plain training
has one job a run; annealing evaluates after every chunk, keeps the best weights and may end early;
a search proposes further jobs from what earlier ones knew.

The loop (`loop.py`) fills lanes, trains a chunk of steps, evaluates those that are due, and narrows
to fewer lanes where most are idle; from time to time it hands every job's state, at its true size,
to the checkpoints, so that a job goes on in whatever pack its run comes to be in.

Shape letters: R lanes, C steps of a chunk, L steps of an epoch, B batch, T examples, K instances,
M draws.
"""

from memobench.engine.lanes import Lane, State
from memobench.engine.loop import Lanes, compile_ahead, train
from memobench.engine.policy import Job, OneJobPerRun, Policy
from memobench.engine.program import Program, compile_program, to_compile
from memobench.engine.signature import Signature
