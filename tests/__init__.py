"""The tests mirror the folders of the package. Their common fixtures are in ``conftest.py``."""

from hypothesis import HealthCheck, settings

# Examples write real files on busy machines, so their durations vary.
settings.register_profile(
    "isolog",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("isolog")
