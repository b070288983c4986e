"""What a recipe costs before it runs.

model    parameters and floating-point operations of a decoder, exact and by rule of thumb
memory   bytes per device by ZeRO stage
plan     the recipe's run: tokens, steps, FLOPs, wall clock, memory, with every assumption in words
"""
