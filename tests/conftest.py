"""What holds for every test: no property fails because the machine was slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("plinth", deadline=None)
settings.load_profile("plinth")
