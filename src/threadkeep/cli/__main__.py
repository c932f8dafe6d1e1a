from threadkeep.cli import main

main()
