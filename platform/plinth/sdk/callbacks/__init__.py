"""Callbacks that connect released trainers to a run. Each module imports its trainer, so import it by name.

hugging_face   `transformers.Trainer`
lightning      Lightning's `Trainer`
olmo_core      OLMo-core's `Trainer`
"""
