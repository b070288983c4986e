"""A profile of hypothesis for changed comparisons: the examples of the suite, and none is made smaller."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "first-failure",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
