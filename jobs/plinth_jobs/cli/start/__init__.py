"""Commands to set up and run.

check    `plinth ops check`: a checklist of this workspace; waivers of its lines
recipe   `plinth recipe check | show | schema`: the recipe, before anything runs
gameday  `plinth ops gameday`: a fault on purpose, with verdict, signed record and page
scale    `plinth corpus scale`: an estimate of a corpus of any size
plan     `plinth run plan`: an estimate of a training run
divisions  its divisions over a fleet, ranked
purchases  the best model that money buys on a fleet
cost     `plinth ops cost`: what was spent, and limits
run      `plinth run` and `plinth up`: the commands that start work
retention  `plinth ops gc`: storage by age, and the deletion of what nothing needs
backup   `plinth ops backup`: back up, restore, drill
"""
