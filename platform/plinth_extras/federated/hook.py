"""`training.federated`: the federation that a run is a site of, and its training hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from plinth.extensions import late
from plinth.records import Frozen, Name
from plinth.sections import RecipeSection
from plinth.training.hooks import TrainingHook

if TYPE_CHECKING:
    from plinth.training.telemetry.timeline import History


class Federated(Frozen):
    """Other trainings of the same model, on text that stays where it is; weights are averaged every `inner_steps`."""

    site: Name = Field(description="This run's name among the sites.")
    sites: tuple[Name, ...] = Field(min_length=1, description="All sites, this one too.")
    exchange: str = Field(
        pattern=r"^(/|s3://[^/]+)",
        description="Absolute folder, or `s3://bucket/prefix`, that all sites and the coordinator reach.",
    )
    inner_steps: int = Field(500, ge=1, description="Steps of a site between two averages.")
    outer_lr: float = Field(0.7, gt=0, description="Rate of the outer step; 1 without momentum is the plain mean.")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer step.")

    @model_validator(mode="after")
    def _one_of_the_sites(self) -> Self:
        if self.site not in self.sites or len(set(self.sites)) != len(self.sites):
            raise ValueError(f"site {self.site} in sites {', '.join(self.sites)}: expected there, each name once")
        return self

    def ends_round(self, step: int, total_steps: int) -> bool:
        """Whether weights are averaged after this step: also before the first one, so that all begin alike."""
        return step % self.inner_steps == 0 or step == total_steps


SECTION = RecipeSection(
    name="training.federated", model=Federated, description="Sites that average weights; left out: none."
)
STATE = RecipeSection(name="run.federated", model=Federated, description="The federation of the run.")


def facts(history: History | None, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """The rounds of sites that the run took part in: the step, the weights that it adopted, and the sites."""
    if history is None:
        return {}
    rounds = {event["step"]: event for event in history.of("averaged")}
    kept = [{key: rounds[step][key] for key in ("step", "round", "sites", "common")} for step in sorted(rounds)]
    return {"federated": kept}


HOOK = TrainingHook(
    name="federated",
    params=Federated,
    rank=late("plinth_extras.federated.site:Site"),
    facts=facts,
    unidentified=("exchange",),
    position=2,
)
