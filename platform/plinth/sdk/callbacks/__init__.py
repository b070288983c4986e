"""Callbacks that connect released trainers to a run. Each module imports its trainer, so import it by name.

base           the constant batch that these trainers need
hugging_face   `transformers.Trainer`
lightning      Lightning's `Trainer`
olmo_core      OLMo-core's `Trainer`
"""
