"""Skills: folders with a SKILL.md that teach the agent how something is done.

`SkillsLoader` finds them, `manual` parses a SKILL.md, `lint` checks one.
"""

from nanobot.agent.skills.loader import SkillsLoader as SkillsLoader
