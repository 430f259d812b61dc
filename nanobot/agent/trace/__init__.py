"""Traces: what happened in each turn, kept for who asks later. The pipeline and the command line may import it.

Reading order: turn_trace (a sink that gathers one turn) -> writer (from sinks to the disk, beside the turns) -> folder
(the files: lines, prompts, rotation) -> recorded (traces and session rows together again: turns as they happened) ->
replay (such a turn again, with another model).
"""
