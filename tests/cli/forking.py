"""A program that has imported threadkeep and forks for each command: importing takes longer than most commands.

It reads a job a line and answers with the exit code. The child runs threadkeep as `python -m` would.
"""

import json
import os
import runpy
import sys

import threadkeep.cli.commands  # noqa: F401 - imported once, for all commands

for line in sys.stdin:  # noqa: B007 - the child reads it
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()

job = json.loads(line)
os.chdir(job["cwd"])
os.environ.clear()
os.environ.update(job["env"])
for descriptor, name in enumerate((os.devnull, job["out"], job["err"])):
    os.dup2(os.open(name, os.O_RDWR), descriptor)
sys.argv = ["threadkeep", *job["words"]]
# Nothing comes after it, so that its exit or its traceback is this process's own.
runpy.run_module("threadkeep.cli", run_name="__main__", alter_sys=True)
