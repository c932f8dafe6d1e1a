from threadkeep.migrations.environment import run

run()
