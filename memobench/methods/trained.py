"""The base of methods that train step by step, in the engine's loop."""

from memobench import engine
from memobench.common.errors import require
from memobench.core.checkpoints import Checkpoints
from memobench.core.run import Method, OnSteps, Pack, PackResult
from memobench.engine import Policy


class TrainedMethod(Method):
    """A method that the engine trains, as its `policy` says. A kind defines `policy`."""

    @classmethod
    def check_kind(cls) -> None:
        super().check_kind()
        defines = cls.policy is not TrainedMethod.policy
        require(defines, f"method {cls.name} has no policy; define it")

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> Policy:
        """The answers to what the engine's loop asks while it trains a pack, which may resume."""
        raise NotImplementedError

    def train(
        self,
        pack: Pack,
        on_steps: OnSteps = lambda steps: None,
        checkpoints: Checkpoints | None = None,
    ) -> PackResult:
        return engine.train(self.policy(pack, checkpoints), on_steps, checkpoints)
